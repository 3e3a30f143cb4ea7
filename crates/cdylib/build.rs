//! Makes the trampolines, the version script and the order of the functions of the shared object
//! from the lists in symbols/.
//!
//! Every exported symbol gets a trampoline, a jump to its function in `capi`, and a `.symver` that
//! gives the trampoline the symbol's name and node. The version script holds only the nodes: what
//! is exported, the `.symver`s say.
//!
//! What programs run again and again lies together, in front of `.text`: where many processes
//! alternate, the processor has forgotten the addresses of all pages of code each time, and what
//! lay here and there among the rest took 240 pages for each connection. A function that the list
//! has and the object has not is no error, as the compiler may have put it into another one; it is
//! in `.text` itself because valgrind finds no names elsewhere.
//!
//! On x86-64 the object asks to be loaded at one address in every process ([`ADDRESS`]). A
//! processor remembers by its address where a branch goes, and 64 processes that alternate with the
//! same code at 64 places have each other's forgotten each time: 22,000 connections a second in
//! place of 27,000. So a process is as easy to attack by what it finds in this object as one that
//! is linked for a place of its own (`-no-pie`, or Go's); all else lies where the system
//! puts it. With VERBENA_LINK_ADDRESS=any in the environment of the build this object does, too.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// The lists of exported symbols, and the chain of nodes of each library, oldest first. `signals`
/// are the C library's, with its own oldest node: the object stands in front of it where a program
/// asks for them (`capi::signals`).
const LISTS: [&str; 3] = ["ibverbs", "rdmacm", "signals"];

/// Functions of the C library's in whose place the object's own code, the standard library's among
/// it, calls one of `capi`. So a preloaded object that stands in front of the C library's
/// (librspreload) takes no socket of ours for a program's.
const HIDDEN: [(&str, &str); 1] = [("socket", "capi::rsocket::own_socket")];

/// The oldest node of glibc on x86-64, as the list has it, and on aarch64.
const OLDEST: (&str, &str) = ("GLIBC_2.2.5", "GLIBC_2.17");

/// Where it asks to be loaded: below all programs that are linked for any place, and where
/// ThreadSanitizer takes code. Where something lies there, or the loader does not ask for it (glibc
/// before 2.36, where the program is linked for any place), it lies anywhere.
const ADDRESS: &str = "0x550000000000";

fn main() {
    println!("cargo::rerun-if-changed=symbols");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTFLAGS");
    println!("cargo::rerun-if-env-changed=VERBENA_LINK_ADDRESS");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut exports = Vec::new();
    for list in LISTS {
        exports.extend(pairs(&format!("symbols/{list}.txt")));
    }
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "aarch64") {
        let oldest = exports.iter_mut().map(|(_, node)| node).filter(|node| *node == OLDEST.0);
        oldest.for_each(|node| *node = OLDEST.1.to_owned());
    }
    fs::write(out.join("trampolines.rs"), trampolines(&exports)).expect("OUT_DIR can be written");
    let script = out.join("nodes.map");
    fs::write(&script, version_script(&exports)).expect("OUT_DIR can be written");
    let nodes = format!("-Wl,--version-script={}", script.display());
    let script = out.join("order.ld");
    fs::write(&script, order()).expect("OUT_DIR can be written");
    let order = format!("-Wl,-T,{}", script.display());
    if let Err(why) = try_linker(&out, &[&nodes]) {
        fail(&format!(
            "the linker does not take the version script of libverbena_rdma.so: {why}\n\
             It must be lld: rustc's default on x86-64 Linux since 1.90; elsewhere set RUSTFLAGS=-Clink-arg=-fuse-ld=lld.\n\
             GNU ld refuses a second version script."
        ));
    }
    let lies_anywhere = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch != "x86_64")
        || env::var("VERBENA_LINK_ADDRESS").is_ok_and(|address| address == "any");
    let address =
        (!lies_anywhere).then(|| (format!("-Wl,--image-base={ADDRESS}"), "give the object an address"));
    for (arg, what) in [(order, "lay hot functions together")].into_iter().chain(address) {
        match try_linker(&out, &[&nodes, &arg]) {
            Ok(()) => println!("cargo::rustc-cdylib-link-arg={arg}"),
            Err(why) => println!("cargo::warning=the linker does not {what}: {why}"),
        }
    }
    for arg in [
        &nodes,
        // One name whichever of its three links a program loads it by.
        "-Wl,-soname,libverbena_rdma.so",
        // Our thread and handlers outlive a dlclose.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}

/// Ends the build with a message that says what to do.
fn fail(message: &str) -> ! {
    for line in message.lines() {
        println!("cargo::error={line}");
    }
    exit(1)
}

/// The lines of a list, split at spaces, without comments.
fn lines(path: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| fail(&format!("{path}: {e}")));
    let lines = text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty());
    lines.map(|l| l.split_whitespace().map(str::to_owned).collect()).collect()
}

/// A list of "symbol node".
fn pairs(path: &str) -> Vec<(String, String)> {
    let pair = |l: Vec<String>| match <[String; 2]>::try_from(l) {
        Ok([symbol, node]) => (symbol, node),
        Err(l) => fail(&format!("{path}: `{}` is not \"symbol node\"", l.join(" "))),
    };
    lines(path).into_iter().map(pair).collect()
}

/// What stands behind a symbol.
enum Target {
    /// A function, by its path.
    Function(String),
    /// A byte of data.
    Byte,
}

/// What stands behind each symbol, keyed by "symbol" or "symbol@node".
fn targets() -> BTreeMap<String, Target> {
    let mut targets = BTreeMap::new();
    let mut add = |key: &String, target| {
        if targets.insert(key.clone(), target).is_some() {
            fail(&format!("symbols/: {key} is listed twice, in built.txt or unsupported.txt"));
        }
    };
    for line in lines("symbols/built.txt") {
        match &line[..] {
            [symbol, what] if what == "byte" => add(symbol, Target::Byte),
            [symbol, module] => {
                let name = symbol.split('@').next().unwrap_or(symbol);
                add(symbol, Target::Function(format!("capi::{module}::{name}")));
            }
            [symbol, module, name] => add(symbol, Target::Function(format!("capi::{module}::{name}"))),
            other => fail(&format!("symbols/built.txt: `{}` is not \"symbol module\"", other.join(" "))),
        }
    }
    for line in lines("symbols/unsupported.txt") {
        match &line[..] {
            [symbol, answer] => add(symbol, Target::Function(format!("capi::unsupported::{answer}"))),
            other => {
                fail(&format!("symbols/unsupported.txt: `{}` is not \"symbol answer\"", other.join(" ")))
            }
        }
    }
    targets
}

/// One `global_asm!`: a trampoline and a `.symver` for each export.
fn trampolines(exports: &[(String, String)]) -> String {
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "jmp",
        Ok("aarch64") => "b",
        other => {
            fail(&format!("no trampoline is known for {other:?}: add its jump to crates/cdylib/build.rs"))
        }
    };
    let targets = targets();
    let mut used = BTreeSet::new();
    let mut functions = BTreeMap::new();
    let (mut text, mut data) = (String::new(), String::new());
    for (symbol, node) in exports {
        let exact = format!("{symbol}@{node}");
        let key = if targets.contains_key(&exact) { &exact } else { symbol };
        let Some(target) = targets.get(key) else {
            fail(&format!("symbols/: {symbol} is exported but neither in built.txt nor in unsupported.txt"));
        };
        used.insert(key.clone());
        let label = format!("__t_{symbol}__{}", node.replace('.', "_"));
        let at = if is_default(exports, symbol, node) { "@@" } else { "@" };
        let symver = format!(".globl {label}\\n.symver {label}, {symbol}{at}{node}\\n");
        match target {
            Target::Function(path) => {
                let next = functions.len();
                let f = functions.entry(path.clone()).or_insert(next);
                let _ = writeln!(
                    text,
                    "    \"{symver}.type {label}, %function\\n{label}: {jump} {{f{f}}}\\n.size {label}, . - {label}\","
                );
            }
            Target::Byte => {
                let _ = writeln!(
                    data,
                    "    \"{symver}.type {label}, %object\\n{label}: .zero 1\\n.size {label}, 1\","
                );
            }
        }
    }
    for (symbol, path) in HIDDEN {
        let next = functions.len();
        let f = functions.entry(path.to_owned()).or_insert(next);
        let _ = writeln!(
            text,
            "    \".globl {symbol}\\n.hidden {symbol}\\n.type {symbol}, %function\\n{symbol}: {jump} {{f{f}}}\\n.size {symbol}, . - {symbol}\","
        );
    }
    if let Some(unknown) = targets.keys().find(|k| !used.contains(*k)) {
        fail(&format!("symbols/: {unknown} is in built.txt or unsupported.txt but not exported"));
    }
    let mut out = format!(
        "core::arch::global_asm!(\n    \".pushsection .text.trampolines, \\\"ax\\\", %progbits\",\n{text}    \
         \".popsection\",\n    \".pushsection .bss.exported, \\\"aw\\\", %nobits\",\n{data}    \".popsection\",\n"
    );
    for (path, f) in functions {
        let _ = writeln!(out, "    f{f} = sym {path},");
    }
    out + ");\n"
}

/// Whether new programs bind to this node: of several nodes with the symbol, the newest.
fn is_default(exports: &[(String, String)], symbol: &str, node: &str) -> bool {
    exports.iter().filter(|(s, _)| s == symbol).map(|(_, n)| age(n)).max() == Some(age(node))
}

/// Orders the nodes of one library: `IBVERBS_1.10` after `IBVERBS_1.9`.
fn age(node: &str) -> (String, Vec<u32>) {
    let (name, version) = node.rsplit_once('_').unwrap_or((node, ""));
    (name.to_owned(), version.split('.').filter_map(|n| n.parse().ok()).collect())
}

/// The nodes, each after its older one; then one without symbols, which says that nothing else is
/// exported. So does rustc's own script, but a linker that takes one script only (zig's) takes this
/// one, the last. Of a node with symbols lld would make those local that have a newer version
/// elsewhere.
fn version_script(exports: &[(String, String)]) -> String {
    let nodes: BTreeSet<_> = exports.iter().map(|(_, node)| (age(node), node)).collect();
    let mut script = String::new();
    let mut older: Option<(&str, &str)> = None;
    for ((library, _), node) in &nodes {
        // Private nodes stand alone, as they do in rdma-core.
        let parent =
            older.filter(|(l, _)| l == library && !library.contains("PRIVATE")).map_or("", |(_, n)| n);
        let space = if parent.is_empty() { "" } else { " " };
        let _ = writeln!(script, "{node} {{ }}{space}{parent};");
        older = Some((library, node));
    }
    script + "VERBENA { local: *; };\n"
}

/// Has the functions of the list lie together, in its order. Behind a section that there is
/// whatever the C compiler brings along: zig's has no `.init`.
fn order() -> String {
    let mut script = "SECTIONS {\n  .text : {\n".to_owned();
    for name in hot() {
        // As rustc mangles names, and as it does in the library that comes with it.
        let _ = writeln!(script, "    *(.text._ZN{0}17h* .text._R{0}*)", pattern(&name));
    }
    script + "    *(.text .text.*)\n  }\n} INSERT AFTER .eh_frame;\n"
}

/// The names of the list, in its order.
fn hot() -> Vec<String> {
    let path = "symbols/hot.txt";
    let text = fs::read_to_string(path).unwrap_or_else(|e| fail(&format!("{path}: {e}")));
    text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(str::to_owned).collect()
}

/// A part of the mangled name of a function: the identifiers of its name are in that, too, in their
/// order, and the last one has its length in front.
fn pattern(name: &str) -> String {
    let words = name.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut words: Vec<_> = words.map(str::to_owned).collect();
    match words.last_mut() {
        Some(last) if name.ends_with(&*last) => *last = format!("{}{last}", last.len()),
        _ => words.push(String::new()),
    }
    words.iter().fold(String::new(), |all, word| all + "*" + word)
}

/// Links an empty shared object with arguments of the real one: what a linker does not take (GNU
/// ld, a second version script beside rustc's own) is better known here, with a reason, than at the
/// end of the build.
fn try_linker(out: &Path, arguments: &[&str]) -> Result<(), String> {
    let source = out.join("probe.rs");
    let asm = "core::arch::global_asm!(\".globl __t\\n.symver __t, t@@IBVERBS_1.1\\n__t:\");\n";
    fs::write(&source, asm).expect("OUT_DIR can be written");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    rustc
        .args(["--edition=2024", "--crate-type=cdylib", "--crate-name=probe", "-o"])
        .arg(out.join("probe.so"));
    rustc.arg("--target").arg(env::var_os("TARGET").expect("cargo sets TARGET"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|f| !f.is_empty()));
    rustc.args(arguments.iter().map(|argument| format!("-Clink-arg={argument}"))).arg(&source);
    let done = rustc.output().unwrap_or_else(|e| fail(&format!("cannot run rustc to try the linker: {e}")));
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(said.lines().map(str::trim).find(|l| l.contains("ld: ")).unwrap_or(said.trim()).to_owned())
}
