//! What differs between two config files.

use super::document::Document;
use std::collections::BTreeSet;

/// The keys, by their paths, that one text has and the other has not, or that have other values. A text that is no TOML
/// counts as empty.
pub fn changed(old: &str, new: &str) -> Vec<String> {
    let (old, new) = (Document::parse(old).unwrap_or_default(), Document::parse(new).unwrap_or_default());
    let keys: BTreeSet<&String> = old.leaves.keys().chain(new.leaves.keys()).collect();
    let value = |document: &'_ Document, key: &str| document.leaves.get(key).map(|leaf| leaf.value.clone());
    keys.into_iter().filter(|key| value(&old, key) != value(&new, key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_go_or_change_are_told() {
        let old = "[server]\nlisten = \"a\"\nhosts = [\"x\"]\n[limits]\nmax_requests = 4\n[[keys]]\nname = \"a\"";
        let new =
            "[limits]\nmax_requests = 5\n\n[server]\nhosts = [\"x\"]\n[[keys]]\nname = \"a\"\n[[keys]]\nname = \"b\"";
        assert_eq!(changed(old, new), ["keys[1].name", "limits.max_requests", "server.listen"]);
        assert_eq!(changed(old, old), Vec::<String>::new());
    }
}
