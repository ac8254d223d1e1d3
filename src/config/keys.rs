//! `[[keys]]`: which clients may use the server, and what each may have. The config holds hashes, never a key itself.

use super::access::texts;
use super::reader::Reader;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use toml::Value;

/// What a key may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum Scope {
    /// Speech: `/v1/audio/speech`, batches, the WebSocket.
    Speak,
    /// Chat.
    Chat,
    /// Uploading voices, and deleting those that the key has uploaded or that no key has.
    Voices,
    /// Deleting the voices of other keys too.
    AllVoices,
    /// `/metrics` and `/debug/trace`.
    Metrics,
    /// `/debug/faults`.
    Drill,
    /// `/cluster/drain`.
    Cluster,
}

impl Scope {
    /// Every one.
    pub const ALL: [Scope; 7] =
        [Scope::Speak, Scope::Chat, Scope::Voices, Scope::AllVoices, Scope::Metrics, Scope::Drill, Scope::Cluster];
    /// Those of a key that names none.
    pub const USUAL: [Scope; 4] = [Scope::Speak, Scope::Chat, Scope::Voices, Scope::Metrics];

    /// As the config writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Speak => "speak",
            Scope::Chat => "chat",
            Scope::Voices => "voices",
            Scope::AllVoices => "voices:all",
            Scope::Metrics => "metrics",
            Scope::Drill => "drill",
            Scope::Cluster => "cluster",
        }
    }
}

/// One of `[[keys]]`.
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct KeyConfig {
    /// Name of the client that has it, for logs and metrics.
    pub name: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// Where the key lies, if not in the config.
    pub file: Option<PathBuf>,
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// Share of the places, against those of other keys.
    pub weight: u32,
    /// Requests in flight; `None`: `limits.max_requests`.
    pub max_requests: Option<usize>,
    /// Requests in a minute, uploads and refused ones too; `None`: no limit.
    pub requests_per_minute: Option<u32>,
    /// Seconds of speech in an hour; `None`: no limit.
    pub speech_seconds_per_hour: Option<u32>,
    /// Bytes of bodies and WebSocket messages in a minute; `None`: no limit.
    pub bytes_per_minute: Option<u64>,
    /// Requests and WebSockets that are being answered at once; `None`: no limit but that of the server.
    pub max_connections: Option<usize>,
}

impl KeyConfig {
    /// A key with the usual scopes and no limits.
    pub fn new(name: impl Into<String>, sha256: [u8; 32]) -> KeyConfig {
        KeyConfig {
            name: name.into(),
            sha256,
            file: None,
            scopes: Scope::USUAL.to_vec(),
            weight: 1,
            max_requests: None,
            requests_per_minute: None,
            speech_seconds_per_hour: None,
            bytes_per_minute: None,
            max_connections: None,
        }
    }
}

/// What is kept of a key.
pub fn hash_key(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

pub(super) fn keys(r: &mut Reader, base: &Path) -> Vec<KeyConfig> {
    r.refuse("keys", "must be written [[keys]], once per key");
    let keys: Vec<_> = (0..r.repeated("keys")).filter_map(|i| key(r, &format!("keys[{i}]"), base)).collect();
    for (i, key) in keys.iter().enumerate() {
        let earlier = &keys[..i];
        if earlier.iter().any(|other| other.name == key.name) {
            r.complain(&format!("keys[{i}].name"), format!("{:?} is the name of two keys", key.name));
        }
        if earlier.iter().any(|other| other.sha256 == key.sha256) {
            r.complain(&format!("keys[{i}]"), format!("{:?} has the same key as another one", key.name));
        }
    }
    keys
}

pub(super) fn key(r: &mut Reader, section: &str, base: &Path) -> Option<KeyConfig> {
    let field = |field: &str| format!("{section}.{field}");
    let text =
        |allowed: fn(&str) -> bool| move |value: &Value| value.as_str().filter(|t| allowed(t)).map(str::to_owned);
    let plain = |name: &str| {
        (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let name = r.value(&field("name"), "", "1 to 64 letters, digits, dots, - or _".to_owned(), text(plain));
    let allowed = "the 64 hexadecimal digits of the key's SHA-256".to_owned();
    let hash = r.value(&field("sha256"), "", allowed, |value| digits(value.as_str()?));
    let file = r.value(&field("file"), "", "a file".to_owned(), text(|path| !path.trim().is_empty()));
    let scope = |name: &str| Scope::ALL.into_iter().find(|scope| scope.as_str() == name);
    let names = |scopes: &[Scope]| scopes.iter().map(|scope| format!("{:?}", scope.as_str())).collect::<Vec<_>>();
    let usual = format!("[{}]", names(&Scope::USUAL).join(", "));
    let allowed = format!("a list of {}", names(&Scope::ALL).join(", "));
    let scopes = r.value(&field("scopes"), &usual, allowed, |value| texts(value, scope));
    let weight = r.int(&field("weight"), 1, 1..=1000);
    let max_requests = r.auto_int(&field("max_requests"), 1..=4096);
    let requests_per_minute = r.auto_int(&field("requests_per_minute"), 1..=1_000_000);
    let speech_seconds_per_hour = r.auto_int(&field("speech_seconds_per_hour"), 1..=100_000_000);
    let bytes_per_minute = r.auto_int(&field("bytes_per_minute"), 1024..=1 << 40);
    let max_connections = r.auto_int(&field("max_connections"), 1..=65_536);
    let Some(name) = name else {
        r.complain(section, "needs `name`");
        return None;
    };
    let file = file.map(|file| base.join(file));
    let sha256 = match (hash, &file) {
        (Some(hash), None) => hash,
        (None, Some(file)) => match read_key(file) {
            Ok(key) => hash_key(&key),
            Err(why) => {
                r.complain(&field("file"), why);
                return None;
            }
        },
        _ => {
            r.complain(section, "needs either `sha256` or `file`");
            return None;
        }
    };
    Some(KeyConfig {
        file,
        scopes: scopes.unwrap_or_else(|| Scope::USUAL.to_vec()),
        weight,
        max_requests,
        requests_per_minute,
        speech_seconds_per_hour,
        bytes_per_minute,
        max_connections,
        ..KeyConfig::new(name, sha256)
    })
}

/// A key that lies in a file of its own, with or without a line end.
fn read_key(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let key = text.trim();
    match key.len() {
        0..16 => Err(format!("{} must hold a key of at least 16 characters", path.display())),
        _ if key.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(key.to_owned()),
        _ => Err(format!("{} must hold one key of printable ASCII without spaces", path.display())),
    }
}

fn digits(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}
