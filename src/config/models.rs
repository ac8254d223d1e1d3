//! `[[models]]`: several models behind one server. An entry has the keys of `[model]`, when it is loaded and unloaded,
//! and tables of its own, which lie over those of the file. So each entry means a whole config.

use super::access::texts;
use super::aliases::name;
use super::document::Document;
use super::error::{ConfigError, Problem};
use super::reader::Reader;
use super::resolve::{config, model, or_problems, size};
use super::{Config, Placement, VoicesDirectory};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Most entries.
const MOST: usize = 32;

/// Tables that an entry may have; a key of theirs goes before the same key of the file.
const TABLES: [&str; 7] = ["device", "speech", "voices", "stages", "transfer", "supervision", "faults"];

/// One of `[[models]]`.
#[derive(Clone, Debug, PartialEq, bincode::Encode, bincode::Decode)]
pub struct ModelEntry {
    /// When it is loaded.
    pub load: LoadTime,
    /// After how long without a request it is unloaded; `None`: only where another model needs its memory.
    pub unload_after: Option<Duration>,
    /// What it takes of `server.model_memory`; `None`: the size of its files of weights.
    pub memory: Option<u64>,
    /// More names of the model.
    pub aliases: Vec<String>,
    /// What it means by itself; its own [`Config::models`] is empty.
    pub config: Config,
}

/// When a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum LoadTime {
    /// When the server starts.
    Start,
    /// When the first request names it.
    FirstUse,
}

/// The keys of an entry besides those of its config.
pub(super) struct Own {
    load: LoadTime,
    unload_after: Option<Duration>,
    memory: Option<u64>,
    aliases: Vec<String>,
}

/// Declares and reads the keys of an entry that no table has.
pub(super) fn entry(r: &mut Reader, section: &str, base: &Path) -> Own {
    model(r, section, base);
    own(r, section)
}

fn own(r: &mut Reader, section: &str) -> Own {
    let key = |field: &str| format!("{section}.{field}");
    let times = [("start", LoadTime::Start), ("first_use", LoadTime::FirstUse)];
    let load = r.choice(&key("load"), "start", &times).unwrap_or(LoadTime::Start);
    let day = Duration::from_secs(24 * 3600);
    let unload_after = r.duration(&key("unload_after"), Duration::ZERO, Duration::ZERO..=day);
    let memory = size(r, &key("memory"), 1 << 20, "1MiB");
    let allowed = "a list of names of 1 to 128 bytes, such as [\"tts-1-hd\"]".to_owned();
    let aliases = r.value(&key("aliases"), "[]", allowed, |value| texts(value, name)).unwrap_or_default();
    Own { load, unload_after: Some(unload_after).filter(|after| !after.is_zero()), memory, aliases }
}

/// Whether a file has `[[models]]`.
pub(super) fn in_document(document: &Document) -> bool {
    document.sections.contains_key("models[0]")
}

/// Resolves a file that has.
pub(super) fn parse(mut document: Document, base: &Path) -> Result<Config, ConfigError> {
    let mut problems = Problems::default();
    if let Some(line) = remove(&mut document, "model") {
        let message = "stands beside [[models]]; write its keys into the entries";
        problems.add(Problem { line, key: "model".to_owned(), value: None, message: message.to_owned() });
    }
    let count = (0..).take_while(|i| document.sections.contains_key(&format!("models[{i}]"))).count();
    if count > MOST {
        problems.complain("models", format!("has {count} entries; at most {MOST} are allowed"));
    }
    let mut entries: Vec<ModelEntry> = Vec::new();
    for i in 0..count.min(MOST) {
        let section = format!("models[{i}]");
        let has = |field: &str| document.leaves.contains_key(&format!("{section}.{field}"));
        let (named, own_voices) = (has("name"), has("voices.directory"));
        let (laid, renamed) = over(&document, &section);
        let mut reader = Reader::new(laid);
        let config = config(&mut reader, &section, base);
        let own = own(&mut reader, &section);
        for problem in reader.finish().1 {
            problems.add(problem.of_entry(&section, &renamed));
        }
        if !named {
            problems.complain(&section, "needs `name`, under which requests ask for it");
        } else if !is_plain(&config.model.name) {
            problems.complain(&format!("{section}.name"), "must be 1 to 64 letters, digits, dots, - or _");
        }
        if count > 1 && config.stages.iter().any(|stage| stage.placement == Placement::Nodes) {
            problems.complain(&section, "has a stage on nodes, which only a server of one model can have");
        }
        let mut entry = ModelEntry {
            load: own.load,
            unload_after: own.unload_after,
            memory: own.memory,
            aliases: own.aliases,
            config,
        };
        if let VoicesDirectory::Folder(folder) = &mut entry.config.voices.directory
            && !own_voices
        {
            *folder = folder.join(&entry.config.model.name);
        }
        entries.push(entry);
    }
    for (key, text) in twice(&entries) {
        problems.complain(&key, format!("{text:?} is a name of two models"));
    }
    let first = entries.first().map_or_else(Config::default, |entry| entry.config.clone());
    or_problems(Config { models: entries, ..first }, problems.list)
}

/// Names that stand for two models, each with the key of the later one.
fn twice(entries: &[ModelEntry]) -> Vec<(String, String)> {
    let mut known = BTreeSet::new();
    let mut twice = Vec::new();
    // All names first: they go before aliases.
    for (i, entry) in entries.iter().enumerate() {
        if !known.insert(entry.config.model.name.clone()) {
            twice.push((format!("models[{i}].name"), entry.config.model.name.clone()));
        }
    }
    for (i, entry) in entries.iter().enumerate() {
        for alias in &entry.aliases {
            if !known.insert(alias.clone()) {
                twice.push((format!("models[{i}].aliases"), alias.clone()));
            }
        }
    }
    twice
}

/// A name that can be that of a folder, too.
fn is_plain(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !name.starts_with('.')
}

/// Takes a section with all that it has out of a document; its line, if it was there.
fn remove(document: &mut Document, section: &str) -> Option<Option<usize>> {
    let below = format!("{section}.");
    let inside = |path: &str| path == section || path.starts_with(&below);
    let line = document.sections.get(section).copied();
    let first = document.leaves.iter().find(|(path, _)| inside(path)).map(|(_, leaf)| leaf.line);
    document.sections.retain(|path, _| !inside(path));
    document.leaves.retain(|path, _| !inside(path));
    line.or(first)
}

/// The document of one entry, and how the paths of its tables are written in the file.
fn over(document: &Document, section: &str) -> (Document, BTreeMap<String, String>) {
    let mut laid = Document::default();
    let mut renamed = BTreeMap::new();
    let inside = format!("{section}.");
    let has_faults = document.sections.contains_key(&format!("{section}.faults[0]"));
    let own = |path: &str| path.starts_with("models[") || (has_faults && path.starts_with("faults["));
    let top = |path: &str| !own(path);
    // What a path of the entry is in its document: the keys of the model keep theirs.
    let path_of = |path: &str| {
        let rest = path.strip_prefix(&inside)?;
        let table = rest.split(['.', '[']).next().unwrap_or(rest);
        Some(if TABLES.contains(&table) { rest } else { path }.to_owned())
    };
    for (path, leaf) in document.leaves.iter().filter(|(path, _)| top(path)) {
        laid.leaves.insert(path.clone(), leaf.clone());
    }
    for (path, line) in document.sections.iter().filter(|(path, _)| top(path) || *path == section) {
        laid.sections.insert(path.clone(), *line);
    }
    for (path, leaf) in &document.leaves {
        if let Some(new) = path_of(path) {
            laid.leaves.insert(new.clone(), leaf.clone());
            renamed.insert(new, path.clone());
        }
    }
    for (path, line) in &document.sections {
        if let Some(new) = path_of(path) {
            laid.sections.insert(new.clone(), *line);
            renamed.insert(new, path.clone());
        }
    }
    (laid, renamed)
}

impl Problem {
    /// With its key as the file writes it.
    fn of_entry(mut self, section: &str, renamed: &BTreeMap<String, String>) -> Problem {
        if let Some(path) = renamed.get(&self.key) {
            self.key.clone_from(path);
        } else if renamed.keys().any(|path| path.starts_with(&format!("{}.", self.key))) {
            self.key = format!("{section}.{}", self.key);
        }
        self
    }
}

/// Problems of all entries; what is wrong with the rest of the file is told once.
#[derive(Default)]
struct Problems {
    list: Vec<Problem>,
}

impl Problems {
    fn add(&mut self, problem: Problem) {
        if !self.list.contains(&problem) {
            self.list.push(problem);
        }
    }

    fn complain(&mut self, key: &str, message: impl Into<String>) {
        self.add(Problem { line: None, key: key.to_owned(), value: None, message: message.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckpointSource;
    use super::*;
    use omni_core::ids::StageName;
    use std::path::PathBuf;

    fn read(text: &str) -> Result<Config, ConfigError> {
        super::super::parse(text, Path::new("/etc/omni"), &[])
    }

    fn problems(text: &str) -> Vec<String> {
        read(text).unwrap_err().problems().iter().map(ToString::to_string).collect()
    }

    const TWO: &str = "
[stages.talker]
max_batch = 4
[voices]
directory = \"voices\"
[[models]]
name = \"a\"
checkpoint = \"one\"
[[models]]
name = \"b\"
checkpoint = \"two\"
load = \"first_use\"
unload_after = \"10m\"
aliases = [\"tts-1-hd\"]
[models.device]
kind = \"cpu\"
[models.stages.talker]
max_batch = 2
";

    #[test]
    fn an_entry_is_a_config_of_its_own_over_that_of_the_file() {
        let config = read(TWO).unwrap();
        let [a, b] = &config.models[..] else { panic!("two models") };
        assert_eq!(a.config.model.checkpoint, CheckpointSource::Folder(PathBuf::from("/etc/omni/one")));
        assert_eq!((a.load, a.unload_after, b.load), (LoadTime::Start, None, LoadTime::FirstUse));
        assert_eq!((b.unload_after, b.aliases.len()), (Some(Duration::from_secs(600)), 1));
        let batch = |entry: &ModelEntry| entry.config.stage(StageName::Talker).max_batch;
        assert_eq!((batch(a), batch(b)), (Some(4), Some(2)));
        assert!(a.config.device.kind.is_none() && b.config.device.kind.is_some());
        let folder = |entry: &ModelEntry| entry.config.voices.directory.clone();
        assert_eq!(folder(a), VoicesDirectory::Folder(PathBuf::from("/etc/omni/voices/a")));
        assert_eq!(folder(b), VoicesDirectory::Folder(PathBuf::from("/etc/omni/voices/b")));
        assert_eq!(Config { models: Vec::new(), ..config.clone() }, a.config);
    }

    #[test]
    fn faults_of_an_entry_are_its_own() {
        let rule = "stage = \"talker\"\npoint = \"runner\"\nkind = \"panic\"\n";
        let text = format!("[[models]]\nname = \"a\"\n[[models]]\nname = \"b\"\n[[models.faults]]\n{rule}");
        let config = read(&text).unwrap();
        assert_eq!((config.models[0].config.faults.len(), config.models[1].config.faults.len()), (0, 1));
    }

    #[test]
    fn what_is_wrong_is_told_with_the_place_where_it_was_written() {
        let names = "[[models]]\nname = \"a\"\n[[models]]\nname = \"a\"\n[[models]]\nname = \"../b\"\n[[models]]";
        assert_eq!(
            problems(names),
            [
                "models[2].name: must be 1 to 64 letters, digits, dots, - or _",
                "models[3]: needs `name`, under which requests ask for it",
                "models[1].name: \"a\" is a name of two models",
            ]
        );
        let text = "[model]\nname = \"x\"\n[[models]]\nname = \"a\"\nlod = \"start\"\nload = \"now\"\n[models.stages.talker]\nrun_ahead = 0\n[models.server]\nlisten = \"x\"";
        assert_eq!(
            problems(text),
            [
                "line 1: model: stands beside [[models]]; write its keys into the entries",
                "line 5: models[0].lod: unknown key; did you mean `models[0].load`?",
                "line 6: models[0].load = \"now\": must be \"start\" or \"first_use\"",
                "line 8: models[0].stages.talker.run_ahead = 0: must be \"auto\" or a whole number from 1 to 8",
                "line 9: models[0].server: unknown section; did you mean `server`?",
            ]
        );
        let once = "[server]\nread_timeout = 5\n[[models]]\nname = \"a\"\n[[models]]\nname = \"b\"";
        assert_eq!(problems(once).len(), 1, "the rest of the file is told once");
        let alias = "[[models]]\nname = \"a\"\naliases = [\"b\"]\n[[models]]\nname = \"b\"";
        assert_eq!(problems(alias), ["models[0].aliases: \"b\" is a name of two models"]);
        assert_eq!(problems("[models]\nname = \"a\""), ["line 1: models: must be written [[models]], once per model"]);
    }
}
