//! The messages of realtime sessions, as `/openapi.json` tells of them: their types. Their fields are OpenAI's, and those of
//! `docs/realtime.md`; `omni-realtime` reads and writes them.

use omni_realtime::{ClientEvent, ServerEvent};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

/// An event of a client.
pub(crate) struct RealtimeClientEvent;

/// An event of the server.
pub(crate) struct RealtimeServerEvent;

impl JsonSchema for RealtimeClientEvent {
    fn schema_name() -> Cow<'static, str> {
        "RealtimeClientEvent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        event(&ClientEvent::TYPES)
    }
}

impl JsonSchema for RealtimeServerEvent {
    fn schema_name() -> Cow<'static, str> {
        "RealtimeServerEvent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        event(&ServerEvent::TYPES)
    }
}

fn event(types: &[&str]) -> Schema {
    json_schema!({
        "type": "object",
        "properties": { "type": { "type": "string", "enum": types }, "event_id": { "type": "string" } },
        "required": ["type"],
    })
}
