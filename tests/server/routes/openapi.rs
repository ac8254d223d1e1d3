//! `/openapi.json`, which the server derives from the structs that read requests and write answers, and docs/api.md beside
//! it: each route, message and code of one is in the other, and the page names no field that does not exist. What a field
//! means is said in `/openapi.json` alone.

use super::Site;
use omni_actors::engine::NewVoice;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

type Names = BTreeSet<String>;

/// Names that say themselves what a field is.
const PLAIN: &str = "audio code consent data event_id failed id live message mime_type model models name nodes param \
                     prompt_tokens ref_text speaker_description succeeded success text text_tokens total_tokens type \
                     url usage version";
pub(super) const PAGE: &str = include_str!("../../../docs/api.md");

fn section(heading: &str) -> &'static str {
    let start = PAGE.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let rest = &PAGE[start + 4..];
    rest.split("\n## ").next().unwrap()
}

/// What stands between backticks.
pub(super) fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Rows of the tables of a section whose first column has this heading, cell by cell.
fn rows(section: &'static str, heading: &str) -> Vec<Vec<&'static str>> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in section.lines() {
        let Some(row) = line.strip_prefix("| ") else {
            inside = false;
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if cells[0] == heading {
            inside = true;
        } else if inside && !cells[0].starts_with("---") {
            rows.push(cells);
        }
    }
    assert!(!rows.is_empty(), "no table of {heading}");
    rows
}

fn fields(section: &'static str, heading: &str) -> Names {
    rows(section, heading).iter().flat_map(|cells| code(cells[0])).map(str::to_owned).collect()
}

/// The document of a server, with what its schemas refer to.
struct Document(Value);

impl Document {
    async fn of(site: &Site) -> Document {
        let response = site.get("/openapi.json").send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/json");
        Document(response.json().await.unwrap())
    }

    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => self.resolved(self.0.pointer(reference.trim_start_matches('#')).unwrap()),
            None => schema,
        }
    }

    /// Names of the fields of a schema, those of inner objects with their path.
    fn fields(&self, schema: &Value) -> Names {
        let mut names = Names::new();
        self.collect(schema, "", &mut names);
        names
    }

    fn collect(&self, schema: &Value, path: &str, names: &mut Names) {
        let schema = self.resolved(schema);
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let name = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            self.collect(inner, &name, names);
            names.insert(name);
        }
        for variant in schema["anyOf"].as_array().into_iter().flatten() {
            self.collect(variant, path, names);
        }
        if schema["items"].is_object() {
            self.collect(&schema["items"], &format!("{path}[]"), names);
        }
    }

    fn operation(&self, path: &str, method: &str) -> &Value {
        let operation = &self.0["paths"][path][method];
        assert!(operation.is_object(), "no {method} {path}");
        operation
    }

    fn request(&self, path: &str, media_type: &str) -> Names {
        self.fields(&self.operation(path, "post")["requestBody"]["content"][media_type]["schema"])
    }

    /// Messages of one side of the WebSocket: their types, and the fields of each.
    fn messages(&self, side: &str) -> BTreeMap<String, Names> {
        let schema = self.resolved(&self.operation("/v1/audio/speech/stream", "get")["x-websocket"][side]);
        let message = |schema: &Value| {
            let kind = schema["properties"]["type"]["const"].as_str().unwrap().to_owned();
            let mut names = self.fields(schema);
            if let Some(inner) = schema.get("$ref") {
                names.extend(self.fields(&serde_json::json!({ "$ref": inner, })));
            }
            // Objects of another route are told there.
            names.retain(|name| name != "type" && !name.contains('.'));
            (kind, names)
        };
        schema["oneOf"].as_array().unwrap().iter().map(message).collect()
    }
}

#[tokio::test]
async fn the_routes_of_the_page_are_those_of_the_document() {
    let document = Document::of(&Site::new()).await;
    let paths = document.0["paths"].as_object().unwrap();
    let described = paths.iter().flat_map(|(path, methods)| {
        let web_socket = methods["get"].get("x-websocket").is_some();
        methods.as_object().unwrap().keys().map(move |method| {
            let method = if web_socket { "WS".to_owned() } else { method.to_uppercase() };
            format!("{method} {path}")
        })
    });
    let start = PAGE.split("\n## ").next().unwrap();
    assert_eq!(fields(start, "route"), described.collect::<Names>());
}

#[tokio::test]
async fn the_page_names_no_field_that_does_not_exist() {
    let document = Document::of(&Site::new()).await;
    let speech = document.request("/v1/audio/speech", "application/json");
    for heading in ["Audio", "POST /v1/audio/speech", "Deadlines"] {
        let told = fields(section(heading), "field");
        assert!(told.is_subset(&speech), "{heading}: {:?}", told.difference(&speech).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn every_field_says_what_it_means() {
    let document = Document::of(&Site::new()).await;
    let mut silent = Names::new();
    for (schema, of) in document.0["components"]["schemas"].as_object().unwrap() {
        for (name, field) in of["properties"].as_object().into_iter().flatten() {
            let told = field.get("description").or_else(|| document.resolved(field).get("description"));
            if told.is_none() && !PLAIN.split(' ').any(|plain| plain == name) {
                silent.insert(format!("{schema}.{name}"));
            }
        }
    }
    assert!(silent.is_empty(), "without a description: {silent:?}");
}

#[tokio::test]
async fn batches_and_sessions_have_the_fields_of_the_speech_route() {
    let document = Document::of(&Site::new()).await;
    let json = "application/json";
    let speech = document.request("/v1/audio/speech", json);
    let without =
        |names: &[&str]| -> Names { speech.iter().filter(|name| !names.contains(&name.as_str())).cloned().collect() };
    let batch = document.request("/v1/audio/speech/batch", json);
    let lacks = ["stream", "stream_format", "trace", "start_sample", "timestamp_granularities"];
    let own = without(&lacks);
    let of_items = batch.iter().filter_map(|name| name.strip_prefix("items[].")).map(str::to_owned);
    assert_eq!(of_items.collect::<Names>(), own);
    let of_all = batch.iter().filter(|name| !name.starts_with("items")).cloned();
    assert_eq!(of_all.collect::<Names>(), without(&[&lacks[..], &["input"]].concat()));
    let session = &document.messages("client")["session.config"];
    assert_eq!(*session, without(&["input", "ignore_eos", "loudness", "stream", "stream_format", "trace"]));
}

#[tokio::test]
async fn the_messages_of_a_session_are_those_of_the_page() {
    let document = Document::of(&Site::new()).await;
    let rows = rows(section("WS /v1/audio/speech/stream"), "client says");
    let types = |side| document.messages(side).into_keys().collect::<Names>();
    let client: Names = rows.iter().filter_map(|cells| code(cells[0]).next()).map(str::to_owned).collect();
    assert_eq!(client, types("client"));
    let server: Names = rows.iter().flat_map(|cells| code(cells[1])).map(str::to_owned).collect();
    assert_eq!(server, types("server"));
}

#[tokio::test]
async fn the_codes_of_errors_are_those_of_the_page() {
    let document = Document::of(&Site::new()).await;
    let codes = document.0["components"]["schemas"]["ErrorObject"]["properties"]["code"]["enum"].as_array().unwrap();
    let codes: Names = codes.iter().map(|code| code.as_str().unwrap().to_owned()).collect();
    let rows = rows(section("Errors"), "status");
    let told = rows.iter().flat_map(|cells| code(cells[1])).map(str::to_owned).collect::<Names>();
    assert_eq!(told, codes);
}

#[tokio::test]
async fn ranges_are_those_that_requests_are_held_to() {
    let document = Document::of(&Site::new()).await;
    let request =
        &document.operation("/v1/audio/speech", "post")["requestBody"]["content"]["application/json"]["schema"];
    let properties = &document.resolved(request)["properties"];
    let number = |field: &str, bound: &str| {
        let schema = &properties[field];
        let inner = schema["anyOf"].as_array().and_then(|variants| variants.first()).unwrap_or(schema);
        inner[bound].as_f64().unwrap_or_else(|| panic!("{field} has no {bound}: {schema}"))
    };
    let site = Site::new();
    for field in
        ["speed", "loudness", "temperature", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"]
    {
        for (bound, outward) in [("minimum", -0.01), ("maximum", 0.01)] {
            let beyond = number(field, bound) + outward;
            let body = serde_json::json!({ "input": "x", field: beyond });
            let refused = site.post("/v1/audio/speech", &body).await.unwrap();
            assert_eq!(refused.status(), 400, "{body}");
            let error: Value = refused.json().await.unwrap();
            assert_eq!(error["error"]["param"], field);
        }
    }
    assert_eq!(document.resolved(request)["required"], serde_json::json!(["input"]));
}

#[tokio::test]
async fn lengths_are_those_that_requests_are_held_to() {
    let site = Site::with(|_, limits| (limits.max_input_chars, limits.max_instruction_chars) = (40, 20));
    let document = Document::of(&site).await;
    let request =
        &document.operation("/v1/audio/speech", "post")["requestBody"]["content"]["application/json"]["schema"];
    let properties = &document.resolved(request)["properties"];
    for (field, limit, key) in [
        ("input", 40, "limits.max_input_chars"),
        ("instructions", 20, "limits.max_instruction_chars"),
        ("instruct", 20, "limits.max_instruction_chars"),
        ("ref_text", 20, "limits.max_instruction_chars"),
    ] {
        let mut body = serde_json::json!({ "input": "x" });
        body[field] = "x".repeat(limit + 1).into();
        let refused = site.post("/v1/audio/speech", &body).await.unwrap();
        let error: Value = refused.json().await.unwrap();
        let error = &error["error"];
        assert_eq!((&error["param"], &error["code"]), (&field.into(), &"text_too_long".into()), "{error}");
        assert!(error["message"].as_str().unwrap().contains(&format!("the limit of {limit}")), "{error}");
        // Another name of a field says no more than that.
        let field = if field == "instruct" { "instructions" } else { field };
        let told = properties[field]["description"].as_str().unwrap();
        assert!(told.contains(&format!("at most `{key}` characters")), "{field}: {told}");
    }
    let form =
        &document.operation("/v1/audio/voices", "post")["requestBody"]["content"]["multipart/form-data"]["schema"];
    let properties = &document.resolved(form)["properties"];
    let (name, text) = (NewVoice::MAX_NAME, NewVoice::MAX_TEXT);
    for (field, longest) in [("name", name), ("consent", text), ("ref_text", text), ("speaker_description", text)] {
        assert_eq!(properties[field]["maxLength"], longest, "{field}");
    }
}
