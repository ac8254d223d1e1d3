//! The crates and the arrows between them are those that `docs/architecture.md` draws.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

const DRAWING: &str = include_str!("../../docs/architecture.md");
/// Crates that may write `unsafe`, and where: CPU kernels, the CUDA driver, shared memory.
const UNSAFE: [&str; 3] = ["src/ops", "src/cuda", "src/transfer"];
/// What `core` may use from outside: derives for what crosses a process border, a parser, and nothing that runs.
const OF_CORE: [&str; 3] = ["bincode", "quick-xml", "serde"];

/// Folder -> what it depends on, tests left out: folders of this workspace, and names of other crates.
fn crates() -> BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let folder = |manifest: &str| {
        let folder = Path::new(manifest).parent().unwrap().strip_prefix(root).unwrap();
        folder.to_str().unwrap().to_owned()
    };
    let packages = metadata["packages"].as_array().unwrap();
    let folders: BTreeMap<&str, String> = packages
        .iter()
        .map(|package| (package["name"].as_str().unwrap(), folder(package["manifest_path"].as_str().unwrap())))
        .collect();
    let depends = |package: &Value| {
        let normal = package["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"].is_null());
        let names = normal.map(|dependency| dependency["name"].as_str().unwrap());
        let (ours, others): (Vec<_>, Vec<_>) = names.partition(|name| folders.contains_key(name));
        (ours.iter().map(|name| folders[name].clone()).collect(), others.iter().map(|&name| name.to_owned()).collect())
    };
    packages.iter().map(|package| (folders[package["name"].as_str().unwrap()].clone(), depends(package))).collect()
}

/// The lines `folder -> folder folder` of the drawing, in its order.
fn drawn() -> Vec<(String, BTreeSet<String>)> {
    let section = DRAWING.split("\n## Crates\n").nth(1).expect("docs/architecture.md has no section `Crates`");
    let block = section.split("```").nth(1).unwrap();
    let lines = block.lines().filter_map(|line| line.split_once("->"));
    let name = |text: &str| format!("src/{}", text.trim());
    lines.map(|(from, to)| (name(from), to.split_whitespace().map(name).collect())).collect()
}

#[test]
fn the_drawing_is_what_cargo_says() {
    let mut crates = crates();
    crates.remove("").expect("the root package, which names all the others");
    let drawn = drawn();
    let found: BTreeSet<_> = crates.keys().cloned().collect();
    assert_eq!(drawn.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>(), found, "crates");
    for (name, depends) in &drawn {
        assert_eq!(depends, &crates[name].0, "what {name} depends on");
    }
    for (at, (name, depends)) in drawn.iter().enumerate() {
        let below: BTreeSet<_> = drawn[at + 1..].iter().map(|(name, _)| name.clone()).collect();
        assert!(depends.is_subset(&below), "an arrow of {name} points upward");
    }
}

#[test]
fn every_folder_in_src_is_a_crate() {
    let crates = crates();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(root.join("src")).unwrap() {
        let entry = entry.unwrap();
        // Seeds of failed property tests, which proptest keeps beside the crates.
        if entry.path().is_dir() && entry.file_name() != "proptest-regressions" {
            let name = format!("src/{}", entry.file_name().to_str().unwrap());
            assert!(crates.contains_key(&name), "{name} is no crate");
        }
    }
}

#[test]
fn core_knows_no_runtime_no_tensors_and_no_transport() {
    let (ours, others) = &crates()["src/core"];
    assert!(ours.is_empty(), "core depends on {ours:?}");
    let more: Vec<_> = others.iter().filter(|name| !OF_CORE.contains(&name.as_str())).collect();
    assert!(more.is_empty(), "core depends on {more:?}");
}

#[test]
fn unsafe_code_is_forbidden_where_it_has_no_business() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in crates().keys() {
        let lib = if name.is_empty() { "src/lib.rs".to_owned() } else { format!("{name}/lib.rs") };
        let forbids = fs::read_to_string(root.join(&lib)).unwrap().contains("#![forbid(unsafe_code)]");
        assert_eq!(forbids, !UNSAFE.contains(&name.as_str()), "{lib}");
    }
}
