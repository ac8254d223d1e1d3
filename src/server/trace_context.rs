//! `traceparent` of the W3C: the trace of a client that a request is part of.

use axum::http::HeaderMap;
use omni_telemetry::trace::Parent;

/// The header.
const TRACEPARENT: &str = "traceparent";

/// The trace, and the step of it that sent the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TraceContext {
    trace_id: String,
    parent_id: String,
    sampled: bool,
}

impl TraceContext {
    /// What a request says; `None` for nothing, and for what is no `traceparent`.
    pub fn of(headers: &HeaderMap) -> Option<TraceContext> {
        TraceContext::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<TraceContext> {
        let mut parts = text.split('-');
        let (version, trace_id, parent_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        };
        let named = |text: &str| text.bytes().any(|byte| byte != b'0');
        // Later versions may say more behind the flags; version 0 does not, and 255 is none.
        let ends = version != "00" || parts.next().is_none();
        let valid = hex(version, 2) && version != "ff" && hex(trace_id, 32) && hex(parent_id, 16) && hex(flags, 2);
        let valid = valid && ends && named(trace_id) && named(parent_id);
        let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
        valid.then(|| TraceContext { trace_id: trace_id.to_owned(), parent_id: parent_id.to_owned(), sampled })
    }

    /// The span of the client that a span of the request belongs below; `None` if the client wants none.
    pub fn parent(&self) -> Option<Parent> {
        self.sampled.then(|| Parent { trace_id: self.trace_id.clone(), span_id: self.parent_id.clone() })
    }

    /// 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_taken_as_the_standard_has_it() {
        let good = TraceContext::parse(GOOD).unwrap();
        assert_eq!(
            (good.trace_id(), good.parent_id.as_str()),
            ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
        );
        assert!(good.sampled && !TraceContext::parse(&GOOD.replace("-01", "-00")).unwrap().sampled);
        assert!(TraceContext::parse(&format!("01{}-more", &GOOD[2..])).is_some(), "a later version");
        for wrong in [
            "",
            "00",
            &format!("{GOOD}-more"),
            &format!("ff{}", &GOOD[2..]),
            &GOOD.to_uppercase(),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &GOOD.replace("00f067aa0ba902b7", "0000000000000000"),
            &GOOD.replace("b7-01", "b7-1"),
        ] {
            assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_taken_for_more_than_it_is(text in "\\PC{0,80}") {
            if let Some(context) = TraceContext::parse(&text) {
                prop_assert!(text.contains(context.trace_id()));
            }
        }
    }
}
