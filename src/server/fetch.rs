//! Fetches a recording from an address that a client names: from listed hosts only, within limits on time and size. It
//! must never fetch from inside our own network, and never look a name up twice: it connects to the address that it
//! checked.

use super::budget::Held;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode, header};
use futures::StreamExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use omni_config::ReferenceAudioConfig;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::{Host, Url};

/// Redirects that are followed, on the same host.
const MAX_REDIRECTS: usize = 3;

/// Why there is no recording. The text tells the client what to change, and nothing about our network.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum FetchError {
    #[error("this server fetches nothing; send base64 or a data URL (reference_audio.allowed_hosts)")]
    Off,
    #[error("the host {0:?} is not one from which this server may fetch (reference_audio.allowed_hosts)")]
    Host(String),
    #[error("an address with a user or password in it is not fetched")]
    Credentials,
    #[error("the host {0:?} could not be reached")]
    Unreachable(String),
    #[error("the host {0:?} has no public address")]
    Private(String),
    #[error("the address leads on to another host, which is not followed; give the final address")]
    Redirect,
    #[error("the host answered {0} instead of a file")]
    Status(u16),
    #[error("the file is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the file did not arrive within {0:.1} s")]
    TooSlow(f32),
    #[error("the file broke off")]
    BrokenOff,
    /// The budget has no room for it.
    #[error("there is no room for the file")]
    NoRoom,
}

/// The bytes at `url`. `held` grows before they do, to twice as much.
pub(super) async fn fetch(url: &Url, config: &ReferenceAudioConfig, held: &mut Held) -> Result<Vec<u8>, FetchError> {
    if config.allowed_hosts.is_empty() {
        return Err(FetchError::Off);
    }
    let all = async {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            match get(&url, config, held).await? {
                Got::Bytes(bytes) => return Ok(bytes),
                Got::Moved(to) => {
                    let next = url.join(&to).map_err(|_| FetchError::Redirect)?;
                    let same = next.host() == url.host() && next.port_or_known_default() == url.port_or_known_default();
                    let safer = next.scheme() == url.scheme() || next.scheme() == "https";
                    // From http to https the port changes with the scheme.
                    let upgraded = next.host() == url.host() && url.port().is_none() && next.port().is_none();
                    if !safer || !(same || upgraded) {
                        return Err(FetchError::Redirect);
                    }
                    url = next;
                }
            }
        }
        Err(FetchError::Redirect)
    };
    let limit = config.fetch_timeout;
    tokio::time::timeout(limit, all).await.unwrap_or(Err(FetchError::TooSlow(limit.as_secs_f32())))
}

enum Got {
    Bytes(Vec<u8>),
    /// A redirect, and where it points.
    Moved(String),
}

async fn get(url: &Url, config: &ReferenceAudioConfig, held: &mut Held) -> Result<Got, FetchError> {
    let secure = match url.scheme() {
        "http" => false,
        "https" => true,
        _ => return Err(FetchError::Redirect),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(FetchError::Credentials);
    }
    let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
        return Err(FetchError::Host(String::new()));
    };
    let name = plain(&host);
    if !config.allowed_hosts.iter().any(|allowed| same_host(allowed, &name)) {
        return Err(FetchError::Host(name.chars().take(100).collect()));
    }
    let address = resolve(&host, &name, port).await?;
    let unreachable = || FetchError::Unreachable(name.clone());
    let socket = TcpStream::connect(address).await.map_err(|_| unreachable())?;
    if secure {
        let server = match host {
            Host::Domain(domain) => ServerName::try_from(domain.to_owned()).map_err(|_| unreachable())?,
            Host::Ipv4(ip) => ServerName::from(IpAddr::V4(ip)),
            Host::Ipv6(ip) => ServerName::from(IpAddr::V6(ip)),
        };
        let secured = tls().connect(server, socket).await.map_err(|_| unreachable())?;
        request(secured, url, config.max_bytes, held).await
    } else {
        request(socket, url, config.max_bytes, held).await
    }
}

/// A host as the config writes it: no brackets, no final dot.
fn plain(host: &Host<&str>) -> String {
    match host {
        Host::Domain(domain) => domain.trim_end_matches('.').to_ascii_lowercase(),
        Host::Ipv4(ip) => ip.to_string(),
        Host::Ipv6(ip) => ip.to_string(),
    }
}

fn same_host(allowed: &str, name: &str) -> bool {
    allowed.trim_matches(['[', ']']).trim_end_matches('.').eq_ignore_ascii_case(name)
}

/// Where to connect. A listed name must lead out of our network. A listed address, or `localhost`, may lead into it:
/// the operator listed it.
async fn resolve(host: &Host<&str>, name: &str, port: u16) -> Result<SocketAddr, FetchError> {
    match host {
        Host::Ipv4(ip) => Ok(SocketAddr::from((*ip, port))),
        Host::Ipv6(ip) => Ok(SocketAddr::from((*ip, port))),
        Host::Domain(domain) => {
            let found = lookup_host((*domain, port)).await.map_err(|_| FetchError::Unreachable(name.to_owned()))?;
            let found: Vec<SocketAddr> = found.collect();
            let allowed = |address: &&SocketAddr| match name {
                "localhost" => address.ip().is_loopback(),
                _ => is_public(address.ip()),
            };
            match (found.iter().find(allowed), found.is_empty()) {
                (Some(address), _) => Ok(*address),
                (None, true) => Err(FetchError::Unreachable(name.to_owned())),
                (None, false) => Err(FetchError::Private(name.to_owned())),
            }
        }
    }
}

/// Whether an address is known to be one of the open network.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => public_v4(ip),
        IpAddr::V6(ip) => public_v6(ip),
    }
}

/// By the registry of special addresses (RFC 6890 and its successors).
fn public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_broadcast()
        || ip.is_documentation()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b)) // shared by providers
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19)); // benchmarks
    !special
}

/// Global unicast is 2000::/3. An address that carries a v4 address counts as that one.
fn public_v6(ip: Ipv6Addr) -> bool {
    if let Some(v4) = ip.to_ipv4_mapped() {
        return public_v4(v4);
    }
    let s = ip.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        [0x2002, high, low, ..] => embedded(high, low),               // 6to4
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low), // NAT64
        [0x2001, second, ..] if second < 0x200 => false,              // protocols, Teredo among them
        [0x2001, 0xdb8, ..] => false,                                 // documentation
        [0x3fff, second, ..] if second < 0x1000 => false,             // documentation
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// Trusts the roots that this machine trusts. Without any it refuses every certificate.
pub(super) fn tls() -> TlsConnector {
    static CONNECTOR: OnceLock<TlsConnector> = OnceLock::new();
    let connector = CONNECTOR.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        TlsConnector::from(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
    });
    connector.clone()
}

/// One request over a connection that is only for it.
async fn request<S>(socket: S, url: &Url, max_bytes: usize, held: &mut Held) -> Result<Got, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |_| FetchError::BrokenOff;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(broken)?;
    let path = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    let request = Request::get(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, concat!("omni-actors/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, "audio/*, */*;q=0.1")
        .header(header::CONNECTION, "close")
        .body(Body::empty())
        .map_err(|_| FetchError::BrokenOff)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        if status.is_redirection() {
            let to = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            return to.map(|to| Got::Moved(to.to_owned())).ok_or(FetchError::Redirect);
        }
        if status != StatusCode::OK {
            return Err(FetchError::Status(status.as_u16()));
        }
        let mut body = Body::new(response.into_body()).into_data_stream();
        let mut bytes: Vec<u8> = Vec::new();
        while let Some(piece) = body.next().await {
            let piece: Bytes = piece.map_err(|_| FetchError::BrokenOff)?;
            if bytes.len() + piece.len() > max_bytes {
                return Err(FetchError::TooLarge(max_bytes));
            }
            let total = bytes.len() + piece.len();
            if bytes.capacity() < total {
                // Half more than is there, and as much again for where they are copied to.
                let wanted = (total + total / 2).min(max_bytes);
                if !held.resize(2 * wanted) {
                    return Err(FetchError::NoRoom);
                }
                bytes.reserve_exact(wanted - bytes.len());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Got::Bytes(bytes))
    };
    // The connection is polled only while the exchange waits, and is dropped with the answer.
    tokio::select! {
        got = exchange => got,
        _ = async { let _ = connection.await; std::future::pending::<()>().await } => Err(FetchError::BrokenOff),
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::{Budget, What};
    use super::*;
    use metrics::Gauge;
    use omni_config::DecodePlace;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn fetch(url: &Url, config: &ReferenceAudioConfig) -> Result<Vec<u8>, FetchError> {
        let budget = Budget::new(What::Input, 10_000, Gauge::noop());
        super::fetch(url, config, &mut Held::nothing(&budget)).await
    }

    fn config(hosts: &[&str]) -> ReferenceAudioConfig {
        ReferenceAudioConfig {
            min_length: Duration::from_millis(500),
            max_length: Duration::from_secs(60),
            max_bytes: 1000,
            allowed_hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            allowed_folders: Vec::new(),
            fetch_timeout: Duration::from_secs(5),
            decode: DecodePlace::Thread,
            decode_timeout: Duration::from_secs(10),
        }
    }

    /// A host on this machine that answers requests in turn with these bytes, then hangs up; its port.
    async fn host(answers: Vec<Vec<u8>>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            for answer in answers {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await.unwrap());
                }
                assert!(head.starts_with(b"GET /a.wav?b=c HTTP/1.1\r\nhost: "), "{}", String::from_utf8_lossy(&head));
                // A reader that has seen enough may be gone.
                let _ = socket.write_all(&answer).await;
            }
        });
        port
    }

    fn ok(body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    }

    fn moved(to: &str) -> Vec<u8> {
        format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    }

    async fn fetched(answers: Vec<Vec<u8>>, allowed: &[&str]) -> Result<Vec<u8>, FetchError> {
        let port = host(answers).await;
        let url = Url::parse(&format!("http://127.0.0.1:{port}/a.wav?b=c")).unwrap();
        fetch(&url, &config(allowed)).await
    }

    #[tokio::test]
    async fn a_listed_address_is_fetched() {
        assert_eq!(fetched(vec![ok(b"RIFF")], &["127.0.0.1"]).await.unwrap(), b"RIFF");
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nRI\r\n2\r\nFF\r\n0\r\n\r\n".to_vec();
        assert_eq!(fetched(vec![chunked], &["127.0.0.1"]).await.unwrap(), b"RIFF");
        let redirected = vec![moved("/a.wav?b=c"), ok(b"RIFF")];
        assert_eq!(fetched(redirected, &["other.example", "127.0.0.1"]).await.unwrap(), b"RIFF");
    }

    #[tokio::test]
    async fn only_the_name_that_is_listed_counts() {
        let to = |text: &str| Url::parse(text).unwrap();
        assert_eq!(fetch(&to("http://media.example/a"), &config(&[])).await, Err(FetchError::Off));
        for other in [
            "http://media.example.evil.test/a",
            "http://evil.test/media.example",
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://localhost/",
        ] {
            let refused = fetch(&to(other), &config(&["media.example"])).await;
            assert!(matches!(refused, Err(FetchError::Host(_))), "{other}: {refused:?}");
        }
        let with_password = fetch(&to("http://a:b@media.example/"), &config(&["media.example"])).await;
        assert_eq!(with_password, Err(FetchError::Credentials));
    }

    #[tokio::test]
    async fn redirects_to_other_places_are_not_followed() {
        for to in
            ["http://localhost/a", "http://127.0.0.1:9/a", "http://10.0.0.1/a", "file:///etc/passwd", "//evil.test/a"]
        {
            let got = fetched(vec![moved(to)], &["127.0.0.1"]).await;
            assert_eq!(got, Err(FetchError::Redirect), "{to}");
        }
        let round = (0..5).map(|_| moved("/a.wav?b=c")).collect();
        assert_eq!(fetched(round, &["127.0.0.1"]).await, Err(FetchError::Redirect));
    }

    #[tokio::test]
    async fn limits_hold_whatever_the_host_says() {
        let declared = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n".to_vec();
        let long = [declared.clone(), vec![0; 5000]].concat();
        assert_eq!(fetched(vec![long], &["127.0.0.1"]).await, Err(FetchError::TooLarge(1000)));
        let endless = [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![0; 5000]].concat();
        assert_eq!(fetched(vec![endless], &["127.0.0.1"]).await, Err(FetchError::TooLarge(1000)));
        assert_eq!(fetched(vec![declared], &["127.0.0.1"]).await, Err(FetchError::BrokenOff));
        let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
        assert_eq!(fetched(vec![missing], &["127.0.0.1"]).await, Err(FetchError::Status(404)));
        assert_eq!(fetched(vec![b"what?\r\n\r\n".to_vec()], &["127.0.0.1"]).await, Err(FetchError::BrokenOff));
    }

    #[tokio::test]
    async fn a_recording_is_counted_while_it_comes() {
        let port = host(vec![ok(&[7; 600]), ok(&[7; 600])]).await;
        let url = Url::parse(&format!("http://127.0.0.1:{port}/a.wav?b=c")).unwrap();
        let budget = Budget::new(What::Input, 2500, Gauge::noop());
        let mut held = Held::nothing(&budget);
        assert_eq!(super::fetch(&url, &config(&["127.0.0.1"]), &mut held).await.unwrap().len(), 600);
        assert!(held.bytes() >= 600);
        let refused = super::fetch(&url, &config(&["127.0.0.1"]), &mut Held::nothing(&budget)).await;
        assert_eq!(refused, Err(FetchError::NoRoom));
    }

    #[tokio::test]
    async fn a_silent_host_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let config = ReferenceAudioConfig { fetch_timeout: Duration::from_millis(50), ..config(&["127.0.0.1"]) };
        assert!(matches!(fetch(&url, &config).await, Err(FetchError::TooSlow(_))));
    }

    #[test]
    fn the_open_network_is_told_from_ours() {
        let public = |text: &str| is_public(text.parse().unwrap());
        for address in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2002:101:101::1"] {
            assert!(public(address), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "2002:7f00:1::",
            "64:ff9b::a00:1",
            "2001:db8::1",
            "2001::1",
            "ff02::1",
        ] {
            assert!(!public(address), "{address}");
        }
    }
}
