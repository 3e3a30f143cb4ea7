//! Either end of udaddy(1), whose other end may be the C program: the client looks the service up
//! and sends messages, each with the number of its queue pair as immediate data; the server then
//! sends as many back. `udaddy ADDRESS`, or `udaddy ADDRESS SERVER`.

use verbena::{Result, UdSocket};

const MESSAGES: usize = 10;
const SIZE: usize = 100;

async fn send(socket: &UdSocket, to: &verbena::UdAddress) -> Result<()> {
    for _ in 0..MESSAGES {
        socket.send_copy_to(&[0; SIZE], to)?.imm(socket.queue_pair().number()).await?;
    }
    Ok(())
}

async fn receive(socket: &UdSocket) -> Result<verbena::UdAddress> {
    let mut from = socket.address();
    for n in 1..=MESSAGES {
        let datagram = socket.recv_from().await?;
        from = datagram.from;
        println!("{n}: {} bytes from {from:?}, {:x?}", datagram.message.len(), datagram.message.imm());
    }
    Ok(from)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (address, server) = (args.next().unwrap_or_else(|| "127.0.0.1".to_owned()), args.next());
    verbena::block_on(async {
        match server {
            None => {
                let socket = UdSocket::bind(format!("{address}:7174")).await?;
                let client = receive(&socket).await?;
                send(&socket, &client).await
            }
            Some(server) => {
                let socket = UdSocket::bind(format!("{address}:0")).await?;
                let to = socket.lookup(format!("{server}:7174")).await?;
                send(&socket, &to).await?;
                receive(&socket).await.map(drop)
            }
        }
    })
}
