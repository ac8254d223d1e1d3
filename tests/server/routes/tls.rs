//! TLS: requests, streams and WebSockets over it, clients that do not speak it, and certificates that change.

use super::{Site, json};
use futures::{SinkExt, StreamExt};
use omni_actors::config::{Config, TlsConfig};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::tungstenite::Message;

/// Writes a certificate of its own for `localhost` and its key; returns a client that trusts it and no other.
fn certify(folder: &Path) -> TlsConnector {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(folder.join("certificate.pem"), made.cert.pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).unwrap()).unwrap();
    TlsConnector::from(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

fn files(folder: &Path) -> Option<TlsConfig> {
    Some(TlsConfig { certificate: folder.join("certificate.pem"), key: folder.join("key.pem") })
}

fn site(folder: &Path) -> Site {
    Site::with(|server, _| {
        server.access.tls = files(folder);
        server.max_connections = 4;
        server.read_timeout = Duration::from_millis(500);
    })
}

async fn connect(address: SocketAddr, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(address).await?;
    client.connect(ServerName::try_from("localhost").unwrap(), socket).await
}

/// Sends a request and reads the answer to its end.
async fn ask(mut socket: TlsStream<TcpStream>, head: &str, body: &str) -> String {
    let head =
        format!("{head}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn requests_streams_and_websockets_pass() {
    let folder = tempfile::tempdir().unwrap();
    let client = certify(folder.path());
    let site = site(folder.path());
    let live = ask(connect(site.address, &client).await.unwrap(), "GET /live HTTP/1.1", "").await;
    assert!(live.starts_with("HTTP/1.1 200") && live.ends_with("{\"live\":true}"), "{live}");

    let socket = connect(site.address, &client).await.unwrap();
    let body = json!({"input": "Hi", "response_format": "pcm"}).to_string();
    let head = "POST /v1/audio/speech HTTP/1.1\r\nContent-Type: application/json";
    let streamed = tokio::spawn(async move { ask(socket, head, &body).await });
    let call = site.service.call().await;
    call.started().await;
    for _ in 0..3 {
        call.audio(20_000).await;
    }
    call.finish().await;
    let streamed = streamed.await.unwrap();
    assert!(streamed.starts_with("HTTP/1.1 200") && streamed.ends_with("0\r\n\r\n"), "whole, to the last chunk");

    let socket = connect(site.address, &client).await.unwrap();
    let address = "wss://localhost/v1/audio/speech/stream";
    let (mut socket, _) = tokio_tungstenite::client_async(address, socket).await.unwrap();
    let created = socket.next().await.unwrap().unwrap();
    assert_eq!(json(created.to_text().unwrap())["type"], "session.created");
    socket.send(Message::text(json!({"type": "input.text", "text": "Well."}).to_string())).await.unwrap();
    socket.send(Message::text(json!({"type": "input.done"}).to_string())).await.unwrap();
    let call = site.service.call().await;
    call.started().await;
    call.audio(2).await;
    call.finish().await;
    let mut bytes = 0;
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Binary(audio) => bytes += audio.len(),
            Message::Text(text) if json(&text)["type"] == "session.done" => break,
            _ => {}
        }
    }
    assert_eq!(bytes, 4);
}

#[tokio::test]
async fn clients_without_tls_are_closed_and_hold_a_place_only_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let client = certify(folder.path());
    let site = site(folder.path());
    // Plain HTTP is no handshake.
    let mut plain = TcpStream::connect(site.address).await.unwrap();
    plain.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    // Silence fills every place, until the time for a handshake is up.
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(site.address).await.unwrap());
    }
    for socket in &mut silent {
        assert_eq!(socket.read(&mut [0; 1]).await.unwrap_or(0), 0, "closed without a word");
    }
    let live = ask(connect(site.address, &client).await.unwrap(), "GET /live HTTP/1.1", "").await;
    assert!(live.starts_with("HTTP/1.1 200"), "{live}");
}

#[tokio::test]
async fn another_certificate_is_for_connections_to_come() {
    let folder = tempfile::tempdir().unwrap();
    let before = certify(folder.path());
    let site = site(folder.path());
    let mut open = connect(site.address, &before).await.unwrap();
    let after = certify(folder.path());
    assert!(connect(site.address, &after).await.is_err(), "it has not been read yet");
    let config = Config { server: site.config.clone(), ..Config::default() };
    site.reloader.apply(&config).unwrap();
    assert!(connect(site.address, &before).await.is_err());
    connect(site.address, &after).await.unwrap();
    // What is open goes on.
    open.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut begin = [0; 12];
    open.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");

    // A file that is no certificate changes nothing.
    std::fs::write(folder.path().join("certificate.pem"), "nonsense").unwrap();
    let told = site.reloader.apply(&config).unwrap_err().to_string();
    assert!(told.contains("certificate.pem"), "{told}");
    connect(site.address, &after).await.unwrap();
}

#[test]
fn a_certificate_that_cannot_be_used_is_told() {
    let folder = tempfile::tempdir().unwrap();
    certify(folder.path());
    let key = std::fs::read(folder.path().join("key.pem")).unwrap();
    let check = || {
        let access = omni_actors::config::AccessConfig { tls: files(folder.path()), ..Default::default() };
        let server = omni_actors::config::ServerConfig { access, ..Config::default().server };
        omni_actors::server::check_tls(&server).map_err(|error| error.to_string())
    };
    assert_eq!(check(), Ok(()));
    certify(folder.path());
    std::fs::write(folder.path().join("key.pem"), &key).unwrap();
    assert!(check().unwrap_err().starts_with("server.tls: "), "the key of another certificate");
    std::fs::write(folder.path().join("key.pem"), "").unwrap();
    assert!(check().unwrap_err().contains("key.pem"));
    std::fs::remove_file(folder.path().join("certificate.pem")).unwrap();
    assert!(check().unwrap_err().contains("cannot read"));
}
