//! `[wyoming]`: the listener for Home Assistant and other clients of the Wyoming protocol, which knows no keys.

use super::ServerConfig;
use super::access::texts;
use super::reader::Reader;
use std::net::SocketAddr;

/// `[wyoming]`
#[derive(Clone, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct WyomingConfig {
    /// Where it listens; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// The name under which the local network is told of it; `None`: it is not told.
    pub announce: Option<String>,
    /// Whether clients may use it although they can send no key.
    pub without_key: bool,
    /// Codes of the languages that clients are told; empty: those of the model.
    pub languages: Vec<String>,
    /// How every request is spoken, or what its voice is like; `None`: nothing is said of it.
    pub instructions: Option<String>,
    /// The seed of every request; `None`: each has its own.
    pub seed: Option<u64>,
}

impl WyomingConfig {
    /// Why it must not listen at `address`, if it must not.
    pub fn too_open_at(&self, address: SocketAddr, server: &ServerConfig) -> Option<&'static str> {
        if self.without_key {
            return None;
        }
        if !server.keys.is_empty() {
            return Some(
                "lets clients in without a key, and there are [[keys]]: allow it with wyoming.without_key = true, or \
                 leave wyoming.listen empty",
            );
        }
        let open = !address.ip().is_loopback() && !server.allow_anonymous;
        open.then_some(
            "can be reached from other machines, and Wyoming has no keys: allow it with wyoming.without_key = true",
        )
    }
}

pub(super) fn wyoming(r: &mut Reader, server: &ServerConfig) -> WyomingConfig {
    let allowed = "an address and a port, such as \"127.0.0.1:10200\", or empty for none";
    let listen = r.text("wyoming.listen", "", allowed, |text| match text {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    });
    let allowed = "a name of 1 to 63 bytes, such as \"omni-actors\", or empty for none";
    let announce = r.text("wyoming.announce", "", allowed, |text| match text {
        "" => Some(None),
        name => instance(name).map(Some),
    });
    let without_key = r.switch("wyoming.without_key", false);
    let allowed = "a list of codes of languages, such as [\"en\", \"de\"], or [] for those of the model".to_owned();
    let languages = r.value("wyoming.languages", "[]", allowed, |value| texts(value, language));
    let said = |text: &str| Some(Some(text.trim().to_owned()).filter(|text| !text.is_empty()));
    let instructions = r.text("wyoming.instructions", "", "how to speak, in words; empty for nothing", said);
    let allowed = "\"random\", or a whole number from 0".to_owned();
    let seed = r.value("wyoming.seed", "\"random\"", allowed, |value| match value.as_str() {
        Some("random") => Some(None),
        _ => u64::try_from(value.as_integer()?).ok().map(Some),
    });
    let config = WyomingConfig {
        listen: listen.flatten(),
        announce: announce.flatten(),
        without_key,
        languages: languages.unwrap_or_default(),
        instructions: instructions.flatten(),
        seed: seed.flatten(),
    };
    if let Some(why) = config.listen.and_then(|address| config.too_open_at(address, server)) {
        r.complain("wyoming.listen", why);
    }
    if config.announce.is_some() && config.listen.is_none() {
        r.complain("wyoming.announce", "tells where the listener is, and there is none: set wyoming.listen");
    }
    config
}

/// A label of DNS, which the name of a service is: any text of at most 63 bytes.
fn instance(name: &str) -> Option<String> {
    let plain = !name.chars().any(char::is_control) && name.trim() == name;
    ((1..=63).contains(&name.len()) && plain).then(|| name.to_owned())
}

/// A code such as `en`, `pt-BR` or `zh_Hant`.
fn language(code: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    ((2..=16).contains(&code.len()) && code.chars().all(plain)).then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, KeyConfig, parse};
    use std::path::Path;

    fn problems(text: &str) -> String {
        parse(text, Path::new("."), &[]).err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn it_is_off_unless_an_address_is_given() {
        assert_eq!(Config::default().wyoming, WyomingConfig::default());
        let config = parse("[wyoming]\nlisten = \"127.0.0.1:10200\"\nseed = 7", Path::new("."), &[]).unwrap();
        assert_eq!(config.wyoming.listen, Some(SocketAddr::from(([127, 0, 0, 1], 10200))));
        assert_eq!((config.wyoming.seed, config.wyoming.without_key), (Some(7), false));
        assert_eq!(config.wyoming.announce, None);
        let named = format!("[wyoming]\nlisten = \"127.0.0.1:10200\"\nannounce = \"{}\"", "ü".repeat(31));
        assert_eq!(parse(&named, Path::new("."), &[]).unwrap().wyoming.announce, Some("ü".repeat(31)));
        assert!(problems(&named.replace("ü", "üü")).contains("1 to 63 bytes"));
    }

    #[test]
    fn bad_values_are_told_with_what_is_allowed() {
        for (line, says) in [
            ("listen = \"10200\"", "127.0.0.1:10200"),
            ("announce = \"a\\nb\"", "1 to 63 bytes"),
            ("announce = \" omni\"", "1 to 63 bytes"),
            ("announce = \"omni\"", "set wyoming.listen"),
            ("languages = [\"english, german\"]", "[\"en\", \"de\"]"),
            ("seed = -1", "a whole number from 0"),
            ("seed = \"often\"", "\"random\""),
        ] {
            let problems = problems(&format!("[wyoming]\n{line}"));
            assert!(problems.contains(says), "{line}: {problems}");
        }
    }

    #[test]
    fn other_machines_and_servers_with_keys_need_a_line_that_says_so() {
        let (near, far) = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([0, 0, 0, 0], 1)));
        let mut server = Config::default().server;
        let (closed, open) =
            (WyomingConfig::default(), WyomingConfig { without_key: true, ..WyomingConfig::default() });
        assert_eq!(closed.too_open_at(near, &server), None);
        assert!(closed.too_open_at(far, &server).unwrap().contains("other machines"));
        assert_eq!(open.too_open_at(far, &server), None);
        server.allow_anonymous = true;
        assert_eq!(closed.too_open_at(far, &server), None);
        server.keys = vec![KeyConfig::new("a", [0; 32])];
        assert!(closed.too_open_at(near, &server).unwrap().contains("[[keys]]"));
        assert_eq!(open.too_open_at(near, &server), None);
        assert!(problems("[wyoming]\nlisten = \"0.0.0.0:10200\"").contains("wyoming.without_key = true"));
    }
}
