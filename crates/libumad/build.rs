//! Makes the trampolines and the version script of the shared object from symbols/umad.txt, which
//! says of each function its version and the module it is in.
//!
//! The ways are those of crates/cdylib/build.rs, which says why: a `.symver` gives the name and the
//! node, the version script only has the nodes.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::exit;

/// Each node with the one before it, as upstream's libibumad.map has them.
const NODES: [&str; 5] = ["1.0", "1.1", "1.2", "1.3", "1.4"];

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}

fn main() {
    println!("cargo::rerun-if-changed=symbols");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let list =
        fs::read_to_string("symbols/umad.txt").unwrap_or_else(|e| fail(&format!("symbols/umad.txt: {e}")));
    let functions = list.lines().filter(|line| !line.starts_with('#')).map(|line| {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [name, version, module] if NODES.contains(&version) => (name, version, module),
            _ => fail(&format!("symbols/umad.txt: `{line}` is not \"function version module\"")),
        }
    });
    fs::write(out.join("trampolines.rs"), trampolines(functions)).expect("OUT_DIR can be written");
    let script = out.join("nodes.map");
    let mut nodes = "VERBENA { local: *; };\n".to_owned();
    let mut before = String::new();
    for version in NODES {
        let _ = writeln!(nodes, "IBUMAD_{version} {{ }}{before};");
        before = format!(" IBUMAD_{version}");
    }
    fs::write(&script, nodes).expect("OUT_DIR can be written");
    for arg in [&format!("-Wl,--version-script={}", script.display()), "-Wl,-soname,libibumad.so.3"] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}

/// One `global_asm!`: a trampoline and a `.symver` for each function.
fn trampolines<'a>(functions: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> String {
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "jmp",
        Ok("aarch64") => "b",
        other => {
            fail(&format!("no trampoline is known for {other:?}: add its jump to crates/libumad/build.rs"))
        }
    };
    let (mut text, mut targets) = (String::new(), String::new());
    for (name, version, module) in functions {
        let label = format!("__t_{name}");
        let _ = writeln!(
            text,
            "    \".globl {label}\\n.symver {label}, {name}@@IBUMAD_{version}\\n.type {label}, %function\\n\
             {label}: {jump} {{{name}}}\\n.size {label}, . - {label}\","
        );
        let _ = writeln!(targets, "    {name} = sym {module}::{name},");
    }
    format!(
        "core::arch::global_asm!(\n    \".pushsection .text.trampolines, \\\"ax\\\", %progbits\",\n{text}    \
         \".popsection\",\n{targets});\n"
    )
}
