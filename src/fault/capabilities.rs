//! What can break in one engine, and the refusal of rules that ask for anything else.

use super::rule::{Beside, FaultKind, FaultPoint, FaultRule, Phase};
use omni_core::ids::StageName;

/// What an engine is made of, as far as rules need it.
#[derive(Clone, Debug)]
pub struct FaultCapabilities {
    /// The stages that there are.
    pub stages: Vec<StageName>,
    /// Stages with a process of their own.
    pub apart: Vec<StageName>,
    /// Stages with an edge behind them that carries frames, which alone can lose a payload.
    pub framed: Vec<StageName>,
    /// Whether stages compute on a GPU.
    pub gpu: bool,
    /// Whether clients may upload voices.
    pub voices: bool,
}

impl FaultRule {
    /// Whether the rule makes sense, wherever it is used.
    ///
    /// # Errors
    /// The key that does not, and what is allowed.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let FaultRule { stage, point, kind, nth, times, request, one_in, beside, phase, chance, .. } = self;
        let at = format!("point = \"{}\"", point.as_str());
        match (stage, point.has_stage()) {
            (None, true) => {
                let stages = one_of(StageName::ALL.iter().map(|stage| stage.as_str()));
                return Err(("stage", format!("must be set with {at}: {stages}")));
            }
            (Some(_), false) => return Err(("stage", format!("must not be set with {at}, which is in no stage"))),
            _ => {}
        }
        if !kind.suits(*point) {
            let kinds = FaultKind::all(super::HANG).into_iter().filter(|kind| kind.suits(*point));
            return Err(("kind", format!("with {at} must be {}", one_of(kinds.map(FaultKind::as_str)))));
        }
        if let Some(phase) = phase.filter(|phase| !point.knows(*phase)) {
            let phases = Phase::ALL.iter().filter(|phase| point.knows(**phase)).map(|phase| phase.as_str());
            return Err(("phase", format!("with {at} must be {}, not \"{}\"", one_of(phases), phase.as_str())));
        }
        let chosen = [("request", request.is_some()), ("one_in", one_in.is_some()), ("beside", beside.is_some())];
        if let Some((key, _)) = chosen.into_iter().find(|(_, set)| *set && !point.has_request()) {
            return Err((key, format!("must not be set with {at}, where no request is worked on")));
        }
        if *nth == 0 || *times == 0 || [*request, *one_in].contains(&Some(0)) || *beside == Some(Beside::Request(0)) {
            return Err(("nth", "nth, times, request, one_in and beside must be at least 1".to_owned()));
        }
        if !(*chance > 0.0 && *chance <= 1.0) {
            return Err(("chance", "must be above 0 and at most 1".to_owned()));
        }
        Ok(())
    }
}

impl FaultCapabilities {
    /// Whether this engine can do what the rule asks for.
    ///
    /// # Errors
    /// The key that asks for what there is not, and what to do about it.
    pub fn check(&self, rule: &FaultRule) -> Result<(), (&'static str, String)> {
        rule.check()?;
        let Some(stage) = rule.stage else {
            let in_vain = matches!(rule.point, FaultPoint::Voices | FaultPoint::Encoder) && !self.voices;
            let why = "this model takes no uploaded voices: a Qwen3-TTS Base checkpoint does";
            return if in_vain { Err(("point", why.to_owned())) } else { Ok(()) };
        };
        if !self.stages.contains(&stage) {
            let names = one_of(self.stages.iter().map(|stage| stage.as_str()));
            return Err(("stage", format!("this model has no {stage}: must be {names}")));
        }
        if rule.kind == FaultKind::Device && !(self.gpu && self.apart.contains(&stage)) {
            let why = format!(
                "needs a GPU and stages.{stage}.placement = \"process\": in a thread it would break the device for the whole server"
            );
            return Err(("kind", why));
        }
        if rule.kind == FaultKind::Kill && !self.apart.contains(&stage) {
            let why =
                format!("needs stages.{stage}.placement = \"process\": in a thread it would end the whole server");
            return Err(("kind", why));
        }
        if rule.point == FaultPoint::Edge && !self.framed.contains(&stage) {
            let advice =
                "set transfer.transport to \"wire\" or \"shm\", or the placement of the next stage to \"process\"";
            return Err(("point", format!("no frame of the edge behind {stage} can get lost, it has none: {advice}")));
        }
        Ok(())
    }
}

/// `"a", "b" or "c"`
fn one_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn capabilities() -> FaultCapabilities {
        let stages = vec![StageName::Talker, StageName::Vocoder];
        FaultCapabilities {
            stages,
            apart: vec![StageName::Talker],
            framed: vec![StageName::Talker],
            gpu: false,
            voices: false,
        }
    }

    fn told(rule: &FaultRule) -> String {
        capabilities().check(rule).map_or_else(|(key, why)| format!("{key}: {why}"), |()| "fine".to_owned())
    }

    #[test]
    fn what_can_happen_is_fine() {
        for (stage, point, kind) in [
            (Some(StageName::Talker), FaultPoint::Sampler, FaultKind::Kill),
            (Some(StageName::Talker), FaultPoint::Edge, FaultKind::Cut),
            (Some(StageName::Vocoder), FaultPoint::Build, FaultKind::Oom),
            (None, FaultPoint::Client, FaultKind::Slow(Duration::from_secs(1))),
            (None, FaultPoint::Ledger, FaultKind::Panic),
        ] {
            assert_eq!(told(&FaultRule::new(stage, point, kind)), "fine");
        }
    }

    #[test]
    fn what_cannot_happen_is_refused_with_what_can() {
        let rule = |stage: Option<StageName>, point, kind| FaultRule::new(stage, point, kind);
        let talker = Some(StageName::Talker);
        let vocoder = Some(StageName::Vocoder);
        for (rule, expected) in [
            (rule(None, FaultPoint::Runner, FaultKind::Panic), "stage: must be set with point = \"runner\""),
            (rule(talker, FaultPoint::Client, FaultKind::Full), "stage: must not be set with point = \"client\""),
            (
                rule(talker, FaultPoint::Sampler, FaultKind::Oom),
                "kind: with point = \"sampler\" must be \"panic\", \"error\"",
            ),
            (rule(None, FaultPoint::Voices, FaultKind::Panic), "kind: with point = \"voices\" must be \"full\""),
            (rule(None, FaultPoint::Voices, FaultKind::Full), "point: this model takes no uploaded voices"),
            (rule(vocoder, FaultPoint::Runner, FaultKind::Kill), "kind: needs stages.vocoder.placement = \"process\""),
            (rule(talker, FaultPoint::Runner, FaultKind::Device), "kind: needs a GPU"),
            (rule(vocoder, FaultPoint::Edge, FaultKind::Cut), "point: no frame of the edge behind vocoder"),
            (
                rule(Some(StageName::Thinker), FaultPoint::Runner, FaultKind::Panic),
                "stage: this model has no thinker: must be \"talker\" or \"vocoder\"",
            ),
            (
                rule(talker, FaultPoint::Runner, FaultKind::Panic).phase(Phase::Last),
                "phase: with point = \"runner\" must be \"prefill\", \"first\", \"stream\" or \"drain\", not \"last\"",
            ),
            (rule(talker, FaultPoint::Build, FaultKind::Oom).request(1), "request: must not be set"),
            (rule(talker, FaultPoint::Runner, FaultKind::Panic).times(0), "nth: "),
            (rule(talker, FaultPoint::Runner, FaultKind::Panic).chance(f64::NAN), "chance: "),
        ] {
            let told = told(&rule);
            assert!(told.starts_with(expected), "{told:?} where {expected:?} was due");
        }
    }
}
