//! Every relative link and anchor of the documents resolves, and their prose is at most 120 columns wide.

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

/// The documents below a folder.
fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                collect(&entry.path(), into);
            }
        } else if name.ends_with(".md") && !ELSEWHERE.contains(&name.as_str()) {
            into.push(entry.path());
        }
    }
}

fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(root(), &mut found);
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
