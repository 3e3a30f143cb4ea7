//! Any bytes as a net file of a fabric: what is read survives being written and read, the fabric of
//! it stands, and an error names a line and a column that the file has.

use fabric::Fabric;
use fabric::net::{Net, NetFile};

/// Bytes of a file at most: a fabric has memory for each port.
const MAX: usize = 4096;

/// The fuzzer's bytes are the file, which may be no UTF-8, as the command reads it.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX)]);
    // A file that includes itself is refused, not read for ever.
    let mut include = |_: Option<&str>, name: &str| match name {
        "self" => Ok((name.to_owned(), text.clone().into_owned())),
        _ => Err("there is no such file".to_owned()),
    };
    let file = match NetFile::parse(&text, &mut include) {
        Ok(file) => file,
        Err(error) => {
            let line = text.lines().nth(error.line - 1).unwrap_or_default();
            assert!(error.column <= line.len() + 1, "{error} in {line:?}");
            return;
        }
    };
    let net = file.net;
    let written = net.write();
    let again = Net::parse(&written).unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(again, net.sorted());
    assert_eq!(again.write(), written);
    let mut fabric = Fabric::new(&net, 1);
    fabric.set_counters(&file.counters);
    fabric.set_lids(&file.lids);
    assert_eq!(Net::parse(&fabric.write_net()), Ok(again));
    assert_eq!(fabric.census().nodes, net.nodes.len());
}
