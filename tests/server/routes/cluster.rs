//! `/cluster`: what a gateway tells of its nodes, and who may drain one.

use super::Site;
use omni_actors::config::{KeyConfig, hash_key};
use serde_json::{Value, json};

async fn said(response: reqwest::Response, status: u16, code: &str) -> String {
    let found = response.status();
    let body: Value = response.json().await.unwrap();
    assert_eq!((found.as_u16(), body["error"]["code"].as_str()), (status, Some(code)), "{body}");
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn it_tells_nodes_and_replicas() {
    let site = Site::new();
    let cluster: Value = site.get("/cluster").send().await.unwrap().json().await.unwrap();
    assert_eq!((&cluster["gateway"], &cluster["requests"]), (&json!("9"), &json!(0)));
    let offered = json!([{"name": "talker", "used": false, "reason": "it is old"}]);
    let far = json!({
        "name": "far", "id": "1", "host": "rack-1", "pid": 7, "version": "0.0.9", "slots": 4, "stages": offered,
        "arithmetic": "f32 with fused products", "joined": 1_700_000_000, "round_trip_s": 0.0015,
    });
    assert_eq!(cluster["nodes"], json!([far]));
    let nodes: Vec<_> = cluster["stages"].as_array().unwrap().iter().map(|stage| stage["node"].as_str()).collect();
    assert!(nodes.contains(&Some("near")), "{cluster}");
}

#[tokio::test]
async fn a_node_is_drained_by_its_name_or_it_is_told_why_not() {
    let site = Site::new();
    let drain = |body: Value| site.post("/cluster/drain", &body);
    let told = said(drain(json!({"node": "far"})).await.unwrap(), 409, "node_not_drained").await;
    assert_eq!(told, "it is the last");
    let told = said(drain(json!({"node": "else"})).await.unwrap(), 404, "node_not_found").await;
    assert_eq!(told, "no node \"else\" has joined this gateway, which has far");
    said(drain(json!({})).await.unwrap(), 400, "missing_required_parameter").await;
    said(drain(json!({"node": "far", "force": 1})).await.unwrap(), 400, "invalid_type").await;
    for body in [json!({"node": "far", "force": true}), json!({"node": "far", "undo": true})] {
        let answer: Value = drain(body).await.unwrap().json().await.unwrap();
        assert_eq!(answer["nodes"][0]["id"], "1");
    }
}

#[tokio::test]
async fn without_keys_nodes_are_drained_from_the_machine_of_the_gateway_alone() {
    let site = Site::new();
    for header in ["forwarded", "x-forwarded-for", "x-real-ip"] {
        let asked = site.client.post(site.url("/cluster/drain")).header(header, "203.0.113.9");
        let told =
            said(asked.json(&json!({"node": "far", "force": true})).send().await.unwrap(), 403, "insufficient_scope");
        assert!(told.await.contains("from the machine of the gateway only"));
    }
    // A key says who it is, wherever it comes from.
    let keyed = Site::with(|server, _| {
        let key = KeyConfig::new("operator", hash_key("sk-operator"));
        server.keys = vec![KeyConfig { scopes: vec![omni_actors::config::Scope::Cluster], ..key }];
    });
    let asked = keyed.client.post(keyed.url("/cluster/drain")).header("x-forwarded-for", "203.0.113.9");
    let asked = asked.bearer_auth("sk-operator").json(&json!({"node": "far", "force": true}));
    assert_eq!(asked.send().await.unwrap().status(), 200);
    assert_eq!(keyed.get("/cluster").send().await.unwrap().status(), 401);
}
