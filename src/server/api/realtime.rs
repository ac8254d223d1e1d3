//! The messages of realtime sessions, as `/openapi.json` tells of them: their types. Their fields are OpenAI's, and those of
//! `docs/realtime.md`; `omni-realtime` reads and writes them.

use omni_realtime::{ClientEvent, ServerEvent};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
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

/// A client secret, as OpenAI's API names it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ClientSecret {
    /// The key: `ek_` and 32 digits.
    pub value: String,
    /// Until when it opens sessions, Unix seconds.
    pub expires_at: u64,
    /// The session that it opens, as `session.created` tells it.
    pub session: Value,
}

/// What is asked for one.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "for /openapi.json; the handler reads it by hand")]
pub(crate) struct NewClientSecret {
    /// How long it opens sessions.
    pub expires_after: Option<ExpiresAfter>,
    /// The fields of `session.update` that its sessions begin with.
    pub session: Option<Value>,
}

/// An offer as a form. It may be a body of `application/sdp`, too.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "for /openapi.json; the handler reads it by hand")]
pub(crate) struct NewCall {
    /// The SDP offer.
    pub sdp: String,
    /// The fields of `session.update` that the session begins with, as JSON.
    pub session: Option<Value>,
}

/// A time.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "for /openapi.json; the handler reads it by hand")]
pub(crate) struct ExpiresAfter {
    /// `created_at`
    pub anchor: Option<String>,
    /// 10 to 7200; 600 by default.
    pub seconds: Option<u64>,
}

fn event(types: &[&str]) -> Schema {
    json_schema!({
        "type": "object",
        "properties": { "type": { "type": "string", "enum": types }, "event_id": { "type": "string" } },
        "required": ["type"],
    })
}
