//! Says something to the echo server: `echo_client ADDRESS`, 127.0.0.1 without one.

fn main() -> verbena::Result<()> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1".to_owned());
    verbena::block_on(async {
        let conn = verbena::connect(format!("{server}:7471")).await?;
        for text in ["a", "few", "words"] {
            conn.send_inline(text.as_bytes()).await?;
            let Some(answer) = conn.recv().await? else { break };
            println!("{}", String::from_utf8_lossy(&answer));
        }
        conn.close().await
    })
}
