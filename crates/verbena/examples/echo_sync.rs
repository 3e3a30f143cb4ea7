//! The echo, blocking, without any runtime: `echo_sync` serves, `echo_sync ADDRESS` asks.

use std::thread;

use verbena::prelude::*;

fn server() -> verbena::Result<()> {
    let listener = verbena::listen("0.0.0.0:7471").wait()?;
    loop {
        let conn = listener.blocking_request()?.accept().wait()?;
        thread::spawn(move || -> verbena::Result<()> {
            while let Some(message) = conn.blocking_recv()? {
                conn.send(message).wait().buf()?;
            }
            conn.blocking_close()
        });
    }
}

fn client(server: &str) -> verbena::Result<()> {
    let conn = verbena::connect(format!("{server}:7471")).wait()?;
    conn.send_inline(b"hello").wait()?;
    println!("{:?}", conn.blocking_recv()?.map(|m| m.to_vec()));
    conn.blocking_close()
}

fn main() -> verbena::Result<()> {
    match std::env::args().nth(1) {
        None => server(),
        Some(address) => client(&address),
    }
}
