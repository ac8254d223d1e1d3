//! A folder imports only what stands below it in the list of `src/lib.rs`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Lower may be imported by higher; equals import each other.
const LAYERS: [(&str, u32); 13] = [
    ("main", 9),
    ("cli", 8),
    ("server", 7),
    ("engine", 6),
    ("actors", 5),
    ("core", 4),
    ("transfer", 3),
    ("model", 2),
    ("audio", 1),
    ("config", 1),
    ("telemetry", 1),
    ("fault", 1),
    ("ids", 1),
];

fn layer(name: &str) -> Option<u32> {
    LAYERS.iter().find(|(layer, _)| *layer == name).map(|(_, height)| *height)
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names that follow `crate::` in code, `use crate::{a::X, b}` included.
fn imports(source: &str) -> Vec<String> {
    let code: String =
        source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = Vec::new();
    for (at, found) in code.match_indices("crate::") {
        let rest = &code[at + found.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.push(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut start = true;
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                c if start && c.is_alphabetic() => {
                    names.push(word(&list[i..]));
                    start = false;
                }
                _ => {}
            }
        }
    }
    names
}

#[test]
fn no_folder_imports_from_above() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let mut upward = Vec::new();
    for file in &files {
        let inside = file.strip_prefix(&root).unwrap();
        let own = inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
        if own == "lib" {
            continue;
        }
        let height = layer(&own).unwrap_or_else(|| panic!("src/{own} has no place in the list of layers"));
        for name in imports(&fs::read_to_string(file).unwrap()) {
            // Not a folder: a macro or a re-export of the crate's root.
            if layer(&name).is_some_and(|imported| imported > height) {
                upward.push(format!("{} imports {name}", inside.display()));
            }
        }
    }
    assert!(!files.is_empty());
    assert!(upward.is_empty(), "imports that point upward:\n{}", upward.join("\n"));
}

#[test]
fn every_layer_is_a_folder_or_file_that_the_crate_documents() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = fs::read_to_string(root.join("lib.rs")).unwrap();
    for (name, _) in LAYERS {
        assert!(root.join(name).is_dir() || root.join(format!("{name}.rs")).is_file(), "src/{name} is gone");
        assert!(name == "main" || lib.contains(&format!("[`{name}`]")), "src/lib.rs does not explain {name}");
    }
}

#[test]
fn imports_are_found_in_every_form() {
    let source = "use crate::{model::stage::X, ids::{A, B}, engine};\nlet x = crate::server::y(); // crate::cli\nuse crate::core;";
    assert_eq!(imports(source), ["model", "ids", "engine", "server", "core"]);
}
