//! The admin listener: health and metrics while clients take every connection.

use super::Site;
use crate::support::wait;
use omni_actors::config::{KeyConfig, hash_key};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::net::TcpStream;

const SPEECH: &str = "/v1/audio/speech";

/// A server whose admin listener answers.
async fn site(change: impl FnOnce(&mut omni_actors::config::ServerConfig)) -> Site {
    let site = Site::with(|server, _| {
        server.access.admin_listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        change(server);
    });
    wait::answered(async || TcpStream::connect(site.admin.unwrap()).await).await;
    site
}

fn url(site: &Site, path: &str) -> String {
    format!("http://{}{path}", site.admin.unwrap())
}

#[tokio::test]
async fn clients_that_take_every_connection_keep_no_probe_out() {
    let site = site(|server| server.max_connections = 2).await;
    // Requests under way: idle connections would give up their places.
    let (mut answers, mut held) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        answers.push(site.post(SPEECH, &json!({"input": "Hi"})));
        held.push(site.service.call().await);
    }
    assert_eq!(site.get("/v1/models").send().await.unwrap().status(), 503);
    for path in ["/live", "/livez", "/ready", "/readyz", "/health", "/metrics", "/cluster"] {
        let response = site.client.get(url(&site, path)).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
    }
    // Silent connections to itself are more than it has places, and do not keep it busy for long.
    let response = site.client.get(url(&site, "/v1/models")).send().await.unwrap();
    assert_eq!(response.status(), 404);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], "not_found");
    drop(held);
    for answer in answers {
        assert_eq!(answer.await.unwrap().status(), 500);
    }
}

#[tokio::test]
async fn on_a_loopback_address_it_asks_for_no_key_but_for_the_right_name() {
    let site = site(|server| server.keys = vec![KeyConfig::new("alice", hash_key("sk-alice"))]).await;
    assert_eq!(site.get("/metrics").send().await.unwrap().status(), 401);
    let health: Value = site.client.get(url(&site, "/health")).send().await.unwrap().json().await.unwrap();
    assert_eq!(health["stages"][0]["name"], "thinker", "details, as for a key");
    assert_eq!(site.client.get(url(&site, "/metrics")).send().await.unwrap().status(), 200);
    let page = site.client.get(url(&site, "/metrics")).header("origin", "http://elsewhere.example").send().await;
    assert_eq!(page.unwrap().status(), 403);
}

#[tokio::test]
async fn a_rebound_name_reads_no_metrics() {
    // With keys a client may call the server by any name, for a page has no key; here no key is asked for.
    for keys in [vec![], vec![KeyConfig::new("alice", hash_key("sk-alice"))]] {
        let site = site(|server| server.keys = keys).await;
        let rebound = site.client.get(url(&site, "/metrics")).header("host", "rebound.example").send().await.unwrap();
        assert_eq!(rebound.status(), 421);
    }
}

#[tokio::test]
async fn it_ends_with_the_server() {
    let mut site = site(|_| {}).await;
    assert_eq!(site.client.get(url(&site, "/live")).send().await.unwrap().status(), 200);
    drop(site.shutdown.take());
    (&mut site.serving).await.unwrap();
    wait::answered(async || match TcpStream::connect(site.admin.unwrap()).await {
        Ok(_) => Err("it still listens"),
        Err(_) => Ok(()),
    })
    .await;
}

#[tokio::test]
async fn a_process_that_takes_over_binds_the_address_while_the_other_still_answers() {
    let mut first = site(|_| {}).await;
    let address = first.admin.unwrap();
    let second = Site::with(|server, _| server.access.admin_listen = Some(address));
    drop(first.shutdown.take());
    (&mut first.serving).await.unwrap();
    // A connection that the first had not accepted yet is reset.
    while second.client.get(url(&second, "/live")).send().await.is_err() {}
    second.service.ready.store(false, std::sync::atomic::Ordering::SeqCst);
    let ready = loop {
        if let Ok(response) = second.client.get(url(&second, "/ready")).send().await {
            break response.status();
        }
    };
    assert_eq!(ready, 503, "it is the second that answers");
}
