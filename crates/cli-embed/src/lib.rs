//! The shared objects as bytes in the `verbena` command, so that `cargo install`, which takes
//! nothing but the command, takes the objects with it.
//!
//! The command depends on `verbena-cdylib` and `verbena-librpma`, each of which makes a cdylib and
//! an rlib in one run of rustc, before rustc compiles the command. Where the two lie, and under
//! which names, is cargo's affair (packages from git get a hash in theirs), but cargo says it to
//! rustc: `--extern verbena_rdma=<path>.rlib`. A macro runs inside that rustc, so it can read the
//! argument; the object is beside the rlib. Nothing is built twice, and the command is built anew
//! when the object is, because rustc tells cargo of each file it includes.

use std::path::Path;

use proc_macro::TokenStream;

/// The object of a crate, whose name is the argument and whose rlib lies beside the object, and a
/// hash of it: an expression of the type `(&[u8], u64)`. Where rustc only checks, there is no
/// object yet, and the bytes are none.
///
/// # Errors
///
/// A compile error where the object is not beside the rlib.
#[proc_macro]
pub fn object(name: TokenStream) -> TokenStream {
    let text = match find(&name.to_string(), std::env::args()) {
        Ok(Some((path, hash))) => format!("(include_bytes!({path:?}), {hash}u64)"),
        Ok(None) => "(&[], 0u64)".to_owned(),
        Err(message) => format!("compile_error!({message:?})"),
    };
    text.parse().unwrap_or_default()
}

/// The object's path and hash, from rustc's arguments; `None` where this run makes no program.
fn find(name: &str, args: impl Iterator<Item = String>) -> Result<Option<(String, u64)>, String> {
    let args = args.flat_map(unfold);
    let paths =
        args.filter_map(|a| a.strip_prefix(name).and_then(|a| a.strip_prefix('=')).map(str::to_owned));
    let Some(rlib) = paths.into_iter().find(|path| path.ends_with(".rlib")) else {
        return Ok(None);
    };
    let object = std::path::absolute(Path::new(&rlib).with_extension("so"))
        .map_err(|e| format!("no absolute path of {rlib}: {e}"))?;
    let bytes = std::fs::read(&object)
        .map_err(|e| format!("the shared object {} cannot be read: {e}", object.display()))?;
    let path = object.into_os_string().into_string().map_err(|path| format!("{path:?} is not UTF-8"))?;
    Ok(Some((path, fnv(&bytes))))
}

/// Arguments that stand in a file, `@path`, a line each: so cargo hands them over when they are too
/// long.
fn unfold(arg: String) -> Vec<String> {
    let file = arg.strip_prefix('@').and_then(|path| std::fs::read_to_string(path).ok());
    file.map_or_else(|| vec![arg], |text| text.lines().map(str::to_owned).collect())
}

/// FNV-1a, 64 bits: it tells builds from each other, no more.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &[&str]) -> impl Iterator<Item = String> {
        list.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn the_object_is_found_beside_the_rlib_whatever_its_name() {
        let dir = std::env::temp_dir().join(format!("verbena-cli-embed-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let object = dir.join("libverbena_rdma-0123.so");
        std::fs::write(&object, b"a").unwrap();
        let rlib = format!("verbena_rdma={}", object.with_extension("rlib").display());
        let found =
            find("verbena_rdma", args(&["rustc", "--extern", "clap=/x/libclap.rlib", "--extern", &rlib]))
                .unwrap();
        // The test value of the hash's authors.
        assert_eq!(found, Some((object.display().to_string(), 0xaf63_dc4c_8601_ec8c)));
        std::fs::write(dir.join("arguments"), format!("--extern\n{rlib}\n")).unwrap();
        let file = format!("@{}", dir.join("arguments").display());
        assert_eq!(find("verbena_rdma", args(&["rustc", &file])).unwrap(), found);
        std::fs::remove_file(&object).unwrap();
        assert!(find("verbena_rdma", args(&["rustc", "--extern", &rlib])).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_check_that_makes_no_program_wants_no_object() {
        let rmeta = "verbena_rdma=/x/libverbena_rdma-0123.rmeta";
        assert_eq!(find("verbena_rdma", args(&["rustc", "--extern", rmeta])), Ok(None));
        assert_eq!(find("verbena_rdma", args(&["rustc"])), Ok(None));
    }
}
