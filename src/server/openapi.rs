//! `/openapi.json`: the description of the API for programs, derived from the table of routes and the structs of
//! [`api`](super::api).

use super::api::error::ErrorBody;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Makes the schema of a type, or a reference to it.
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What one method of a route does.
pub(super) struct Operation {
    method: &'static str,
    about: &'static str,
    request: Option<(&'static str, SchemaOf)>,
    refused: &'static [(&'static str, &'static str)],
    ignored: &'static [&'static str],
    /// Names, JSON types and meanings of the parameters in its address.
    query: Vec<(&'static str, &'static str, &'static str)>,
    /// Media types of a good answer, with their schemas; a file has none.
    answers: Vec<(&'static str, Option<SchemaOf>)>,
    /// Messages of a WebSocket: the client's, the server's.
    messages: Option<(SchemaOf, SchemaOf)>,
}

impl Operation {
    /// A method (lower case) and what it does.
    pub fn new(method: &'static str, about: &'static str) -> Operation {
        Operation {
            method,
            about,
            request: None,
            refused: &[],
            ignored: &[],
            query: Vec::new(),
            answers: Vec::new(),
            messages: None,
        }
    }

    /// The body of its request.
    pub fn takes<T: JsonSchema>(self, media_type: &'static str) -> Operation {
        Operation { request: Some((media_type, |generator| generator.subschema_for::<T>())), ..self }
    }

    /// Fields of its request that must be empty, with the reason.
    pub fn refuses(self, refused: &'static [(&'static str, &'static str)]) -> Operation {
        Operation { refused, ..self }
    }

    /// Fields of its request that have no effect.
    pub fn ignores(self, ignored: &'static [&'static str]) -> Operation {
        Operation { ignored, ..self }
    }

    /// A parameter in its address, of a JSON type.
    pub fn asks(mut self, name: &'static str, kind: &'static str, about: &'static str) -> Operation {
        self.query.push((name, kind, about));
        self
    }

    /// A good answer.
    pub fn answers<T: JsonSchema>(mut self, media_type: &'static str) -> Operation {
        self.answers.push((media_type, Some(|generator| generator.subschema_for::<T>())));
        self
    }

    /// A good answer that is a file.
    pub fn answers_file(mut self, media_type: &'static str) -> Operation {
        self.answers.push((media_type, None));
        self
    }

    /// The messages of a WebSocket.
    pub fn talks<C: JsonSchema, S: JsonSchema>(self) -> Operation {
        let client: SchemaOf = |generator| generator.subschema_for::<C>();
        let server: SchemaOf = |generator| generator.subschema_for::<S>();
        Operation { messages: Some((client, server)), ..self }
    }

    fn object(&self, path: &str, open: bool, generator: &mut SchemaGenerator) -> Value {
        let mut object = json!({ "summary": self.about });
        if !open {
            object["security"] = json!([{ "key": [] }]);
        }
        let in_path = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        let mut parameters: Vec<Value> = in_path
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
            .collect();
        for (name, kind, about) in &self.query {
            let schema = json!({ "type": kind });
            parameters.push(json!({ "name": name, "in": "query", "description": about, "schema": schema }));
        }
        if !parameters.is_empty() {
            object["parameters"] = json!(parameters);
        }
        if let Some((media_type, schema)) = self.request {
            let content = json!({ media_type: { "schema": schema(generator) } });
            object["requestBody"] = json!({ "required": true, "content": content });
            let refused: Map<String, Value> =
                self.refused.iter().map(|(name, why)| ((*name).to_owned(), json!(why))).collect();
            object["x-refused-unless-empty"] = json!(refused);
            object["x-accepted-without-effect"] = json!(self.ignored);
        }
        let error = generator.subschema_for::<ErrorBody<'_>>();
        let error = json!({ "description": "an error", "content": { "application/json": { "schema": error } } });
        if let Some((client, server)) = self.messages {
            object["x-websocket"] = json!({ "client": client(generator), "server": server(generator) });
            object["responses"] = json!({ "101": { "description": "a WebSocket" }, "default": error });
            return object;
        }
        let answers = self.answers.iter().map(|(media_type, schema)| {
            let content = schema.map_or(json!({}), |schema| json!({ "schema": schema(generator) }));
            ((*media_type).to_owned(), content)
        });
        let answers: Map<String, Value> = answers.collect();
        object["responses"] = json!({ "200": { "description": "done", "content": answers }, "default": error });
        object
    }
}

/// The document. Each route is its path, whether it is open, and its operations.
pub(super) fn document<'a>(routes: impl Iterator<Item = (&'a str, bool, &'a [Operation])>) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for (path, open, operations) in routes {
        let methods = operations
            .iter()
            .map(|operation| (operation.method.to_owned(), operation.object(path, open, &mut generator)));
        paths.insert(path.to_owned(), Value::Object(methods.collect()));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "omni-actors",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "docs/api.md says more. A field that is null counts as absent; a field that is not listed is \
                            ignored and named in the header X-Ignored-Fields.",
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer", "description": "where the config has keys" },
            },
        },
    })
}
