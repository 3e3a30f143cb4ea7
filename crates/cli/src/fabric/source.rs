//! What a fabric is made of: a net file with those that it includes, or a generator.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use ::fabric::net::{Net, NetFile};

use super::RunArgs;

/// Reads the file, or makes the net; with the name of the fabric.
pub(super) fn read(args: &RunArgs) -> Result<(NetFile, String), String> {
    if let Some((net, name)) = generated(args) {
        return Ok((net.into(), name.to_owned()));
    }
    let Some(file) = &args.file else { return Err("no net file is named".into()) };
    let failed = |error: &dyn Display| format!("{}: {error}", file.display());
    let is_stdin = file.as_os_str() == "-";
    let text = if is_stdin {
        std::io::read_to_string(std::io::stdin()).map_err(|error| failed(&error))?
    } else {
        text_of(file).map_err(|error| failed(&error))?
    };
    // A file includes others by names that begin at its own directory.
    let top = if is_stdin { Path::new("") } else { file };
    let mut include = |from: Option<&str>, name: &str| {
        let path = from.map_or(top, Path::new).with_file_name(name);
        let text = text_of(&path).map_err(|error| error.to_string())?;
        Ok((path.to_string_lossy().into_owned(), text))
    };
    let read = NetFile::parse(&text, &mut include).map_err(|error| failed(&error))?;
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok((read, if is_stdin { "stdin".to_owned() } else { stem }))
}

fn generated(args: &RunArgs) -> Option<(Net, &'static str)> {
    let tree = args.fat_tree.map(|tree| (tree.net(), "fat-tree"));
    let torus = || args.torus.map(|torus| (torus.net(), "torus"));
    let dragonfly = || args.dragonfly.map(|dragonfly| (dragonfly.net(), "dragonfly"));
    tree.or_else(torus).or_else(dragonfly)
}

fn text_of(file: &Path) -> std::io::Result<String> {
    // Descriptions come from devices, which may say anything.
    Ok(String::from_utf8_lossy(&fs::read(file)?).into_owned())
}
