//! Each member of the group hears every line; a question is answered to its sender alone. ADDRESS
//! of `chat ADDRESS` is one of this machine.

use verbena::{Result, UdSocket};

/// Hears the group, and answers.
async fn listen(socket: UdSocket) -> Result<()> {
    loop {
        let datagram = socket.recv_from().await?;
        let text = String::from_utf8_lossy(&datagram.message).into_owned();
        println!("{}: {text}", datagram.from.ip());
        if text.ends_with('?') && datagram.from != socket.address() {
            socket.send_copy_to(b"good question", &datagram.from)?.await?;
        }
    }
}

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1".to_owned());
    verbena::block_on(async {
        let socket = UdSocket::bind(format!("{address}:0")).await?;
        let group = socket.join([239, 1, 2, 3].into()).await?;
        verbena::spawn(listen(socket.clone()))?;
        for line in std::io::stdin().lines().map_while(|line| line.ok()) {
            socket.send_copy_to(line.as_bytes(), group.address())?.await?;
        }
        Ok(())
    })
}
