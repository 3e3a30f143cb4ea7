//! Asks the C compiler what the installed headers say about every type and constant of this crate,
//! and compares. What the installed headers are too old to know is left out and counted; where
//! there is no compiler or no header the comparison is left out with one line. Other headers are
//! asked by `CPATH=/their/include cargo test`.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use rdma_core_abi::{cma::*, sa::*, verbs::*};

/// A field: its place here, and how C calls it.
struct Field {
    c_name: String,
    offset: usize,
}

/// A type: its size here, and how C calls it.
struct Type {
    tag: &'static str,
    name: &'static str,
    size: usize,
    fields: Vec<Field>,
}

macro_rules! c_types {
    ($($tag:ident $name:ident { $( $($field:ident).+ $(= $($c:ident).+)? ),* $(,)? })*) => {
        fn types() -> Vec<Type> {
            vec![$(Type {
                tag: stringify!($tag),
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: vec![$(Field {
                    c_name: c_name(&[$(stringify!($field)),+], &[$($(stringify!($c)),+)?]),
                    offset: std::mem::offset_of!($name, $($field).+),
                }),*],
            }),*]
        }
    };
}

macro_rules! c_constants {
    ($($name:ident),* $(,)?) => {
        fn constants() -> Vec<(&'static str, i128)> {
            vec![$((stringify!($name), $name as i128)),*]
        }
    };
}

include!("layout/table.rs");

/// The C path of a field: its own, unless the table gives another.
fn c_name(here: &[&str], there: &[&str]) -> String {
    if there.is_empty() { here.join(".") } else { there.join(".") }
}

const HEADERS: &str = "#include <infiniband/verbs.h>\n#include <infiniband/tm_types.h>\n#include <infiniband/ib.h>\n\
     #include <rdma/rdma_cma.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n";

/// Names that C reaches by another name: macros of `<infiniband/verbs_api.h>` for names of the
/// kernel's header.
const BY_MACRO: &str = "IBV_ADVISE_MR_FLAG_FLUSH IBV_QPF_GRH_REQUIRED";

/// Every word of the preprocessed headers, macros included; `None` where they cannot be read.
fn words_of_headers(dir: &Path) -> Option<HashSet<String>> {
    let source = dir.join("headers.c");
    std::fs::write(&source, HEADERS).expect("the target directory can be written");
    let out = Command::new("cc").args(["-E", "-dD", "-P"]).arg(&source).output().ok()?;
    if !out.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Some(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect())
}

/// The C program that prints `name value` a line, for all of which the headers know the name.
fn c_program(known: impl Fn(&str) -> bool) -> (String, usize) {
    let mut c = format!("#include <stddef.h>\n#include <stdio.h>\n{HEADERS}int main(void) {{\n");
    let mut left_out = 0;
    for t in types() {
        if !known(t.name) {
            left_out += 1;
            continue;
        }
        let Type { tag, name, .. } = t;
        // The second function table grows at its front: places are counted from the context at its
        // end.
        let base = if name == "verbs_context" { "offsetof(struct verbs_context, context)" } else { "0" };
        let mut whole = true;
        for f in &t.fields {
            if !f.c_name.split('.').all(&known) {
                left_out += 1;
                whole = false;
                continue;
            }
            let path = &f.c_name;
            let _ = writeln!(
                c,
                "printf(\"{name}.{path} %lld\\n\", (long long)offsetof({tag} {name}, {path}) - (long long){base});"
            );
        }
        if whole {
            let _ = writeln!(c, "printf(\"{name} %lld\\n\", (long long)sizeof({tag} {name}));");
        }
    }
    for (name, _) in constants() {
        if !known(name) {
            left_out += 1;
            continue;
        }
        let _ = writeln!(c, "printf(\"{name} %lld\\n\", (long long)({name}));");
    }
    c.push_str("return 0; }\n");
    (c, left_out)
}

/// Our own value under each name that [`c_program`] prints.
fn our_values() -> std::collections::HashMap<String, i128> {
    let mut ours = std::collections::HashMap::new();
    for t in types() {
        let base =
            if t.name == "verbs_context" { std::mem::offset_of!(verbs_context, context) } else { 0 } as i128;
        for f in &t.fields {
            ours.insert(format!("{}.{}", t.name, f.c_name), f.offset as i128 - base);
        }
        ours.insert(t.name.to_owned(), t.size as i128);
    }
    // C prints 64 bits with a sign.
    ours.extend(constants().into_iter().map(|(name, value)| (name.to_owned(), value as i64 as i128)));
    ours
}

#[test]
fn layouts_and_constants_are_those_of_the_installed_headers() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Some(words) = words_of_headers(dir) else {
        println!("left out: needs a C compiler, libibverbs-dev and librdmacm-dev");
        return;
    };
    let (source, left_out) = c_program(|name| words.contains(name) || BY_MACRO.contains(name));
    let (c_file, program) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&c_file, source).expect("the target directory can be written");
    let cc =
        Command::new("cc").arg("-w").arg(&c_file).arg("-o").arg(&program).output().expect("cc ran before");
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    let out = Command::new(&program).output().expect("the program was just made");
    let (ours, mut compared, mut wrong) = (our_values(), 0, Vec::new());
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let (name, theirs) = line.split_once(' ').expect("a name and a value");
        let theirs: i128 = theirs.parse().expect("a number");
        compared += 1;
        if ours[name] != theirs {
            wrong.push(format!("{name}: {} here, {theirs} in C", ours[name]));
        }
    }
    println!("{compared} sizes, places and values agree; {left_out} are newer than the installed headers");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        compared > 10 * left_out,
        "nearly everything was left out: {left_out} of {}",
        compared + left_out
    );
}

/// A new type, field or constant must be named in tests/layout/table.rs too.
#[test]
fn the_table_names_every_type_field_and_constant_of_the_crate() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files: Vec<_> = ["cma.rs", "sa.rs"].iter().map(|f| src.join(f)).collect();
    files.extend(
        std::fs::read_dir(src.join("verbs")).expect("src/verbs").map(|e| e.expect("an entry").path()),
    );
    let (types, constants) = (types(), constants());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file");
        let mut current = None;
        for line in text.lines() {
            let word = |prefix: &str| {
                let rest = line.strip_prefix(prefix)?;
                rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
            };
            if let Some(name) = word("pub const ") {
                let here = name == "VERBS_ABI_IS_EXTENDED" || constants.iter().any(|(n, _)| *n == name);
                assert!(here, "{name} of {} is not in the table", file.display());
            } else if let Some(name) = word("pub struct ").or(word("pub union ")) {
                current = types.iter().find(|t| t.name == name);
                assert!(current.is_some() || INNER.contains(&name), "{name} is not in the table");
            } else if let (Some(t), Some(field)) = (current, word("    pub ")) {
                let here = t.fields.iter().any(|f| {
                    f.c_name.split('.').next() == Some(field.trim_end_matches('_')) || f.c_name == field
                }) || RENAMED.contains(&field);
                assert!(here, "{}.{field} is not in the table", t.name);
            }
        }
    }
}

/// Types without a name in C; their fields are checked as part of the type around them.
const INNER: &[&str] = &[
    "rdma_sockaddr",
    "rdma_addr_addr",
    "rdma_cm_event_param",
    "verbs_ex_private",
    "ibv_odp_per_transport_caps",
    "ibv_async_event_element",
    "ibv_flow_spec_hdr",
    "ibv_gid_global",
    "ibv_buf",
    "_compat_ibv_port_attr",
    "ibv_wc_imm",
    "ibv_send_wr_imm",
    "ibv_send_wr_wr",
    "ibv_send_wr_rdma",
    "ibv_send_wr_atomic",
    "ibv_send_wr_ud",
    "ibv_send_wr_qp_type",
    "ibv_send_wr_xrc",
    "ibv_send_wr_op",
    "ibv_send_wr_bind_mw",
    "ibv_send_wr_tso",
    "ibv_ops_wr_tm",
    "ibv_ops_wr_tm_add",
];

/// Members without a name in C.
const RENAMED: &[&str] = &["imm", "op", "src", "dst"];
