//! Who reaches the server and by which name: the keys of `[server]` beside those of connections and bodies.

use super::reader::Reader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Value;

/// By which names the server may be called, and from which pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct AccessConfig {
    /// Names that requests may give in `Host` besides addresses and `localhost`, in lower case.
    pub hosts: Vec<String>,
    /// Origins of pages elsewhere that may use the server, such as `https://app.example.org`, in lower case.
    pub origins: Vec<String>,
    /// Whether clients without a key may list models and voices.
    pub open_lists: bool,
    /// Where health and metrics are besides `listen`, with connections of their own; `None`: nowhere.
    pub admin_listen: Option<SocketAddr>,
    /// What it speaks TLS with; `None`: it speaks plain HTTP.
    pub tls: Option<TlsConfig>,
}

/// `[server.tls]`
#[derive(Clone, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub struct TlsConfig {
    /// PEM: the certificate, and those between it and a root.
    pub certificate: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

pub(super) fn access(r: &mut Reader, base: &Path) -> AccessConfig {
    let allowed = "a list of host names without scheme or port, such as [\"voice.example.org\"]".to_owned();
    let hosts = r.value("server.hosts", "[]", allowed, |value| texts(value, host));
    let allowed =
        "a list of origins: scheme, name and perhaps a port, such as [\"https://app.example.org\"]".to_owned();
    let origins = r.value("server.origins", "[]", allowed, |value| texts(value, origin));
    let open_lists = r.switch("server.open_lists", false);
    let allowed = "an address and a port, such as \"127.0.0.1:9090\", or empty for none";
    let admin_listen = r.text("server.admin_listen", "", allowed, |text| match text {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    });
    let file = |text: &str| Some(base.join(text)).filter(|_| !text.trim().is_empty());
    let certificate = r.text("server.tls.certificate", "", "a file, or empty for no TLS", |text| Some(file(text)));
    let key = r.text("server.tls.key", "", "a file, or empty for no TLS", |text| Some(file(text)));
    let (certificate, key) = (certificate.flatten(), key.flatten());
    if certificate.is_some() != key.is_some() {
        r.complain("server.tls", "needs both `certificate` and `key`");
    }
    AccessConfig {
        hosts: hosts.unwrap_or_default(),
        origins: origins.unwrap_or_default(),
        open_lists,
        admin_listen: admin_listen.flatten(),
        tls: certificate.zip(key).map(|(certificate, key)| TlsConfig { certificate, key }),
    }
}

/// A list of texts, each as `read` takes it.
pub(super) fn texts<T>(value: &Value, read: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(|item| read(item.as_str()?)).collect()
}

fn host(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!name.is_empty() && name.chars().all(plain)).then(|| name.trim_end_matches('.').to_ascii_lowercase())
}

/// An origin as browsers write it: without the port of its scheme.
fn origin(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (scheme, rest) = text.split_once("://")?;
    let usual = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return None,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let rest = rest.strip_suffix(usual).unwrap_or(rest);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
    (!rest.is_empty() && rest.chars().all(plain)).then(|| format!("{scheme}://{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_write_them() {
        for (text, read) in [
            ("https://App.example.org", Some("https://app.example.org")),
            ("https://app.example.org:443/", Some("https://app.example.org")),
            ("http://localhost:3000", Some("http://localhost:3000")),
            ("http://[::1]:3000", Some("http://[::1]:3000")),
            ("*", None),
            ("app.example.org", None),
            ("https://", None),
            ("https://a.example/path", None),
            ("file://a", None),
        ] {
            assert_eq!(origin(text).as_deref(), read, "{text}");
        }
    }
}
