//! Tells the command where cargo leaves the shared object of this build: `cargo install` moves only the command away.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // OUT_DIR is <target>/<profile>/build/<package>/out.
    let profile = out.ancestors().nth(3).map(|p| p.display().to_string()).unwrap_or_default();
    println!("cargo::rustc-env=VERBENA_BUILD_TREE={profile}");
}
