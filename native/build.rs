//! Puts a hash of all Rust sources into the core, by which the package knows the core that fits it
//! (`cometmq/core_sources.py` computes the same).

use sha1::{Digest, Sha1};
use std::fs;
use std::io;
use std::path::Path;

const ROOMS: [&str; 2] = ["codec/src", "src"];

fn main() -> io::Result<()> {
    let mut names = Vec::new();
    for room in ROOMS {
        println!("cargo:rerun-if-changed={room}");
        collect(Path::new(room), &mut names)?;
    }
    names.sort();
    let mut hash = Sha1::new();
    for name in names {
        let text = fs::read_to_string(&name)?.replace("\r\n", "\n");
        hash.update(format!("{name}\0{text}\0"));
    }
    println!("cargo:rustc-env=COMETMQ_CORE_SOURCES={:x}", hash.finalize());
    Ok(())
}

/// Add the names of the sources below a directory, with `/` on every system.
fn collect(directory: &Path, names: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.push(path.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(())
}
