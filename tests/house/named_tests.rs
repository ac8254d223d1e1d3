//! The tests and test files that the documents name exist.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|is| is == extension) {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_test_that_a_document_names_exists() {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let source: String = ["src", "tests"].iter().flat_map(|top| files(&root().join(top), "rs")).map(read).collect();
    let documents = files(&root().join("docs"), "md").into_iter().chain([root().join("README.md")]);
    let (mut tests, mut missing) = (0, Vec::new());
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        // What stands between backticks, the way the documents write names.
        for name in text.split('`').skip(1).step_by(2) {
            let last = name.rsplit("::").next().unwrap_or_default();
            let is_test = name.contains("::") && last.matches('_').count() >= 3;
            let is_file = name.starts_with("tests/") && name.ends_with(".rs");
            tests += usize::from(is_test);
            if (is_test && !source.contains(&format!("fn {last}("))) || (is_file && !root().join(name).exists()) {
                missing.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(tests > 20, "only {tests} tests are named: the documents write them another way");
}
