//! A server that a command asks over HTTP.

use super::super::exit::Usage;
use anyhow::{Context, bail};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;
use std::time::Duration;

/// Which server, and who asks.
pub(super) struct Gateway {
    /// As the user wrote it, for messages.
    pub name: String,
    base: Url,
    key: Option<String>,
    http: Client,
}

impl Gateway {
    /// At a URL such as `http://127.0.0.1:8080`; an answer may take so long.
    pub fn at(url: &str, key: Option<&str>, patience: Duration) -> anyhow::Result<Gateway> {
        let name = url.trim_end_matches('/').to_owned();
        let wrong = |why: String| Usage(format!("--url {name}: {why}; write it as http://HOST:PORT"));
        let base = Url::parse(&name).map_err(|error| wrong(error.to_string()))?;
        if base.scheme() != "http" {
            return Err(wrong("only http:// is supported".to_owned()).into());
        }
        let http = Client::builder().no_proxy().timeout(patience).build()?;
        Ok(Gateway { name, base, key: key.map(str::to_owned), http })
    }

    /// What `GET` of a path answers.
    pub async fn get(&self, path: &str) -> anyhow::Result<Response> {
        self.send(self.http.get(self.url(path)?)).await
    }

    /// What `POST` of JSON to a path answers, if it is good.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let answer = self.send(self.http.post(self.url(path)?).json(body)).await?;
        Ok(self.good(answer).await?.json().await?)
    }

    /// An answer, unless it is an error: then what it says.
    pub async fn good(&self, answer: Response) -> anyhow::Result<Response> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let body: Value = answer.json().await.unwrap_or_default();
        let said = body["error"]["message"].as_str().unwrap_or("no reason given").to_owned();
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => bail!("{}: {said} (--key, or OMNI_KEY)", self.name),
            status => bail!("{} answered {status}: {said}", self.name),
        }
    }

    fn url(&self, path: &str) -> anyhow::Result<Url> {
        Ok(self.base.join(path)?)
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        request.send().await.with_context(|| format!("no answer from {}", self.name))
    }
}
