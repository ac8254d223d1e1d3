//! The HTTP surface against a scripted engine: shapes, statuses, limits, disconnects.

mod admin;
mod aliases;
mod bad_requests;
mod batch;
mod chat;
mod cluster;
mod guard;
mod heard_words;
mod limits;
mod meta;
mod openapi;
mod realtime;
mod reload;
mod scopes;
mod scripted;
mod sites;
mod sound;
mod speech;
mod tls;
mod visits;
mod voices;
mod words;
mod ws;

use omni_actors::config::{Config, LimitsConfig, ServerConfig};
use omni_actors::server::{Reloader, Server};
use reqwest::{Client, RequestBuilder, Response};
use scripted::Scripted;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server. Dropping it stops it.
struct Site {
    service: Arc<Scripted>,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    reloader: Reloader,
    /// What it was made with.
    config: ServerConfig,
    client: Client,
    shutdown: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Site {
    fn new() -> Site {
        Site::with(|_, _| {})
    }

    fn with(change: impl FnOnce(&mut ServerConfig, &mut LimitsConfig)) -> Site {
        let mut config = ServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            max_connections: 64,
            max_body_bytes: 64 << 10,
            drain_grace: Duration::from_secs(5),
            ..Config::default().server
        };
        let mut limits = LimitsConfig {
            max_requests: 4,
            max_input_chars: 1000,
            max_instruction_chars: 1000,
            request_timeout: Duration::from_secs(60),
            ..Config::default().limits
        };
        change(&mut config, &mut limits);
        let service = Arc::new(Scripted::new());
        let server = Server::bind(&config).unwrap();
        let (address, admin, reloader) = (server.local_addr(), server.admin_addr(), server.reloader());
        let (shutdown, stopped) = oneshot::channel::<()>();
        let serving = {
            let service = service.clone();
            let stopped = async {
                let _ = stopped.await;
            };
            tokio::spawn(async move { server.serve(service, &limits, stopped).await })
        };
        Site { service, address, admin, reloader, config, client: Client::new(), shutdown: Some(shutdown), serving }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(self.url(path))
    }

    /// Sends a request in the background, so that the test can play the engine meanwhile.
    fn post(&self, path: &str, body: &Value) -> JoinHandle<Response> {
        let request = self.client.post(self.url(path)).json(body);
        tokio::spawn(async move { request.send().await.unwrap() })
    }
}

/// The data of every event of a finished SSE body.
async fn events(response: Response) -> Vec<String> {
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let body = response.text().await.unwrap();
    body.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}
