//! Makes the trampolines and the version script of the shared object from symbols/rpma.txt, which
//! says of each function the module it is in.
//!
//! The ways are those of crates/cdylib/build.rs, which says why: a `.symver` gives the name and the
//! node, the version script only has the node.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::exit;

const NODE: &str = "LIBRPMA_1.0";

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}

fn main() {
    println!("cargo::rerun-if-changed=symbols");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let list =
        fs::read_to_string("symbols/rpma.txt").unwrap_or_else(|e| fail(&format!("symbols/rpma.txt: {e}")));
    let functions =
        list.lines().filter(|line| !line.starts_with('#')).map(|line| match line.split_once(' ') {
            Some(pair) => pair,
            None => fail(&format!("symbols/rpma.txt: `{line}` is not \"function module\"")),
        });
    fs::write(out.join("trampolines.rs"), trampolines(functions)).expect("OUT_DIR can be written");
    let script = out.join("nodes.map");
    let nodes = format!("{NODE} {{ }};\nVERBENA {{ local: *; }};\n");
    fs::write(&script, nodes).expect("OUT_DIR can be written");
    for arg in [&format!("-Wl,--version-script={}", script.display()), "-Wl,-soname,librpma.so.0"] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}

/// One `global_asm!`: a trampoline and a `.symver` for each function.
fn trampolines<'a>(functions: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "jmp",
        Ok("aarch64") => "b",
        other => {
            fail(&format!("no trampoline is known for {other:?}: add its jump to crates/librpma/build.rs"))
        }
    };
    let (mut text, mut targets) = (String::new(), String::new());
    for (name, module) in functions {
        let label = format!("__t_{name}");
        let _ = writeln!(
            text,
            "    \".globl {label}\\n.symver {label}, {name}@@{NODE}\\n.type {label}, %function\\n\
             {label}: {jump} {{{name}}}\\n.size {label}, . - {label}\","
        );
        let _ = writeln!(targets, "    {name} = sym {module}::{name},");
    }
    format!(
        "core::arch::global_asm!(\n    \".pushsection .text.trampolines, \\\"ax\\\", %progbits\",\n{text}    \
         \".popsection\",\n{targets});\n"
    )
}
