//! The documents lead where they say: every relative link and anchor resolves, the tests that they name exist, and their
//! prose is at most 120 columns wide.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that are not written by hand, or not part of the repository.
const SKIPPED: [&str; 3] = ["target", "fixtures", "proptest-regressions"];
/// The page inside the tarball, whose links lead to files there.
const ELSEWHERE: [&str; 1] = ["INSTALL.md"];
const COLUMNS: usize = 120;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder whose name ends so.
fn files(folder: &Path, ending: &str, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                files(&entry.path(), ending, into);
            }
        } else if name.ends_with(ending) {
            into.push(entry.path());
        }
    }
}

fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(root(), ".md", &mut found);
    found.retain(|path| !ELSEWHERE.iter().any(|name| path.ends_with(name)));
    found.push(root().join("tests/fixtures/README.md"));
    assert!(found.len() > 15, "only {} documents", found.len());
    found
}

/// The lines of a document that are not in a block of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        (!code && !fence).then_some((at + 1, line))
    })
}

/// The anchors of a document's headings, made as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#').map(|rest| rest.trim_start_matches('#')));
    let mut found = BTreeSet::new();
    for heading in headings {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let again = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|name| !found.contains(name)).unwrap();
        found.insert(free);
    }
    found
}

/// What `[text](target)` leads to, in one line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, _)| line[at + 2..].split_once(')').map(|(target, _)| target))
}

#[test]
fn links_resolve() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for (number, line) in prose(&text) {
            for target in links(line) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                checked += 1;
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                let file = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
                let resolves = file.exists()
                    && (anchor.is_empty() || anchors(&fs::read_to_string(&file).unwrap()).contains(anchor));
                if !resolves {
                    broken.push(format!("{}:{number}: {target}", document.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    assert!(checked > 50, "only {checked} links found");
}

#[test]
fn tests_that_documents_name_exist() {
    let mut sources = Vec::new();
    for folder in ["src", "tests", "benches"] {
        files(&root().join(folder), ".rs", &mut sources);
    }
    let code: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let mut missing = Vec::new();
    let mut checked = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for (number, line) in prose(&text) {
            for quoted in line.split('`').skip(1).step_by(2) {
                // `module::name_of_a_test`: long names in the form of tests, no types and no wildcards.
                let name = quoted.rsplit_once("::").map_or("", |(_, name)| name);
                let is_test = name.matches('_').count() >= 3 && name.chars().all(|c| c.is_alphanumeric() || c == '_');
                let is_file = quoted.starts_with("tests/") && quoted.ends_with(".rs");
                checked += usize::from(is_test);
                if is_test && !code.contains(&format!("fn {name}(")) || is_file && !root().join(quoted).exists() {
                    missing.push(format!("{}:{number}: {quoted}", document.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "tests that are named and do not exist:\n{}", missing.join("\n"));
    assert!(checked > 20, "only {checked} names found");
}

#[test]
fn prose_is_at_most_120_columns_wide() {
    let mut wide = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let lines = prose(&text).filter(|(_, line)| !line.trim_start().starts_with('|'));
        for (number, line) in lines.filter(|(_, line)| line.chars().count() > COLUMNS) {
            // A link or a command cannot be broken.
            if line.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0) < COLUMNS - 8 {
                wide.push(format!("{}:{number}: {} columns", document.display(), line.chars().count()));
            }
        }
    }
    assert!(wide.is_empty(), "lines that are too long:\n{}", wide.join("\n"));
}
