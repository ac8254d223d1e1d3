//! Fault plans as the user writes them: `[[faults]]` in a config or a file of their own, or the same as JSON; and the
//! way back.

use super::document::Document;
use super::error::{ConfigError, Problem};
use super::format_duration;
use super::reader::Reader;
use omni_core::ids::StageName;
use omni_fault::{Beside, FaultKind, FaultPlan, FaultPoint, FaultRule, Phase};
use std::fmt;
use std::path::Path;
use std::time::Duration;
use toml::Value;

/// A file of faults. Its `Display` is such a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultFile {
    /// Seed of the chances; `None`: the config's.
    pub seed: Option<u64>,
    /// The rules, in their order.
    pub rules: Vec<FaultRule>,
}

/// Reads a file of `[[faults]]` for `run --faults`.
///
/// # Errors
/// A file that cannot be read, or everything that is wrong in it.
pub fn load_faults(path: &Path) -> Result<FaultFile, ConfigError> {
    let text = std::fs::read_to_string(path);
    parse_faults(&text.map_err(|source| ConfigError::Io { path: path.to_owned(), source })?)
}

/// Reads `[[faults]]` from text.
///
/// # Errors
/// Everything that is wrong in it.
pub fn parse_faults(text: &str) -> Result<FaultFile, ConfigError> {
    let document = Document::parse(text).map_err(|problem| ConfigError::Problems(vec![problem]))?;
    file(document)
}

/// Reads the same from JSON: an object with a list `faults`, whose entries have the keys of the file.
///
/// # Errors
/// Everything that is wrong in it.
pub fn faults_of_json(json: &serde_json::Value) -> Result<FaultFile, ConfigError> {
    let not_toml =
        |message: String| ConfigError::Problems(vec![Problem { line: None, key: String::new(), value: None, message }]);
    // No key takes a value that TOML cannot express, such as null.
    let mut table = toml::Table::try_from(json).map_err(|error| not_toml(format!("must be an object: {error}")))?;
    // A file without rules has no list of them.
    table.retain(|key, value| key != "faults" || value.as_array().is_none_or(|list| !list.is_empty()));
    let text = toml::to_string(&table).map_err(|error| not_toml(error.to_string()))?;
    parse_faults(&text).map_err(|error| match error {
        ConfigError::Problems(problems) => {
            // The lines are those of the TOML made here, which the user never sees.
            ConfigError::Problems(problems.into_iter().map(|problem| Problem { line: None, ..problem }).collect())
        }
        other => other,
    })
}

fn file(document: Document) -> Result<FaultFile, ConfigError> {
    let mut reader = Reader::new(document);
    let allowed = format!("a whole number from 0 to {}", i64::MAX);
    let seed = reader.value("seed", "0", allowed, |value| u64::try_from(value.as_integer()?).ok());
    let rules = faults(&mut reader);
    let (_, problems) = reader.finish();
    if problems.is_empty() { Ok(FaultFile { seed, rules }) } else { Err(ConfigError::Problems(problems)) }
}

/// The rules of a config or a file.
pub(super) fn faults(r: &mut Reader) -> Vec<FaultRule> {
    r.refuse("faults", "must be written [[faults]], once per rule");
    (0..r.repeated("faults")).filter_map(|i| fault(r, &format!("faults[{i}]"))).collect()
}

/// One rule. It looks up every key, so that one wrong key does not hide another.
pub(super) fn fault(r: &mut Reader, section: &str) -> Option<FaultRule> {
    let key = |field: &str| format!("{section}.{field}");
    let points: Vec<_> = FaultPoint::ALL.iter().map(|point| (point.as_str(), *point)).collect();
    let phases = Phase::ALL.iter().map(|phase| (phase.as_str(), Some(*phase)));
    let phases: Vec<_> = [("any", None)].into_iter().chain(phases).collect();
    let stage = r.choice(&key("stage"), "", &StageName::ALL.map(|name| (name.as_str(), name)));
    let point = r.choice(&key("point"), "", &points);
    let delay =
        r.duration(&key("delay"), Duration::from_millis(50), Duration::from_millis(1)..=Duration::from_secs(600));
    let kind = r.choice(&key("kind"), "", &FaultKind::all(delay).map(|kind| (kind.as_str(), kind)));
    let nth = r.int(&key("nth"), 1, 1..=1_000_000_000);
    let whole = |value: &Value| value.as_integer().and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
    let times = r.value(&key("times"), "1", "a whole number from 1 or \"all\"".to_owned(), |value| match value {
        Value::String(word) if word == "all" => Some(u64::MAX),
        other => whole(other),
    });
    let request =
        r.value(&key("request"), "\"any\"", "\"any\" or a whole number from 1".to_owned(), |value| match value {
            Value::String(word) if word == "any" => Some(None),
            other => Some(Some(whole(other)?)),
        });
    let numbers = "a whole number from 1".to_owned();
    let one_in = r.value(&key("one_in"), "\"any\"", format!("\"any\" or {numbers}"), |value| match value {
        Value::String(word) if word == "any" => Some(None),
        other => Some(Some(whole(other)?)),
    });
    let allowed = format!("\"none\", \"any\" or {numbers}");
    let beside = r.value(&key("beside"), "\"none\"", allowed, |value| match value {
        Value::String(word) if word == "none" => Some(None),
        Value::String(word) if word == "any" => Some(Some(Beside::Any)),
        other => Some(Some(Beside::Request(whole(other)?))),
    });
    let phase = r.choice(&key("phase"), "any", &phases).flatten();
    let after = r.duration(&key("after"), Duration::ZERO, Duration::ZERO..=Duration::from_secs(24 * 3600));
    let chance = r.value(&key("chance"), "1", "a number above 0 and at most 1".to_owned(), |value| {
        let number = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))?;
        (number > 0.0 && number <= 1.0).then_some(number)
    });
    let (Some(point), Some(kind)) = (point, kind) else {
        r.complain(section, "needs `point` and `kind`, and `stage` for a point inside a stage");
        return None;
    };
    let chance = chance.unwrap_or(1.0);
    let times = times.unwrap_or(if chance < 1.0 { u64::MAX } else { 1 });
    let (request, one_in, beside) = (request.flatten(), one_in.flatten(), beside.flatten());
    let rule = FaultRule { stage, point, kind, nth, times, request, one_in, beside, phase, after, chance };
    match rule.check() {
        Ok(()) => Some(rule),
        Err((field, reason)) => {
            r.complain(&key(field), reason);
            None
        }
    }
}

/// A rule as pairs of key and value: its place and kind, and every other key that is not the default.
pub fn fault_fields(rule: &FaultRule) -> Vec<(&'static str, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let number = |number: u64| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let mut fields = Vec::new();
    fields.extend(rule.stage.map(|stage| ("stage", text(stage.as_str()))));
    fields.push(("point", text(rule.point.as_str())));
    fields.push(("kind", text(rule.kind.as_str())));
    fields.extend(rule.kind.delay().map(|delay| ("delay", text(&format_duration(delay)))));
    fields.extend((rule.nth > 1).then(|| ("nth", number(rule.nth))));
    let usual = if rule.chance < 1.0 { u64::MAX } else { 1 };
    fields.extend(
        (rule.times != usual).then(|| ("times", if rule.times == u64::MAX { text("all") } else { number(rule.times) })),
    );
    fields.extend(rule.request.map(|request| ("request", number(request))));
    fields.extend(rule.one_in.map(|requests| ("one_in", number(requests))));
    fields.extend(rule.beside.map(|neighbour| match neighbour {
        Beside::Any => ("beside", text("any")),
        Beside::Request(request) => ("beside", number(request)),
    }));
    fields.extend(rule.phase.map(|phase| ("phase", text(phase.as_str()))));
    fields.extend((!rule.after.is_zero()).then(|| ("after", text(&format_duration(rule.after)))));
    fields.extend((rule.chance < 1.0).then_some(("chance", Value::Float(rule.chance))));
    fields
}

impl From<&FaultPlan> for FaultFile {
    fn from(plan: &FaultPlan) -> FaultFile {
        let rules = plan.rules().into_iter().map(|state| state.rule).collect();
        FaultFile { seed: Some(plan.seed()), rules }
    }
}

impl fmt::Display for FaultFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            writeln!(f, "seed = {seed}")?;
        }
        for rule in &self.rules {
            writeln!(f, "\n[[faults]]")?;
            for (key, value) in fault_fields(rule) {
                writeln!(f, "{key} = {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_rule() -> impl Strategy<Value = FaultRule> {
        let place = (0..4usize, 0..FaultPoint::ALL.len(), 0..15usize, 1..600_000u64);
        let when = (1..1_000_000_000u64, prop_oneof![1..=i64::MAX as u64, Just(u64::MAX)]);
        let number = || proptest::option::of(1..=i64::MAX as u64);
        let beside = prop_oneof![
            Just(None),
            Just(Some(Beside::Any)),
            (1..=i64::MAX as u64).prop_map(|request| Some(Beside::Request(request))),
        ];
        let who = (number(), proptest::option::of(0..Phase::ALL.len()), number(), beside);
        let rest = (0..86_400_000u64, prop_oneof![Just(1.0), 1e-12..1.0f64]);
        (place, when, who, rest).prop_filter_map("what cannot happen", |(place, when, who, rest)| {
            let ms = Duration::from_millis;
            let rule = FaultRule {
                stage: StageName::ALL.get(place.0).copied(),
                point: FaultPoint::ALL[place.1],
                kind: FaultKind::all(ms(place.3))[place.2],
                nth: when.0,
                times: when.1,
                request: who.0,
                phase: who.1.map(|phase| Phase::ALL[phase]),
                one_in: who.2,
                beside: who.3,
                after: ms(rest.0),
                chance: rest.1,
            };
            rule.check().is_ok().then_some(rule)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_global_rejects: 1_000_000, ..ProptestConfig::default() })]
        #[test]
        fn a_plan_that_is_written_and_read_is_the_same(seed in 0..=i64::MAX as u64, rules in proptest::collection::vec(any_rule(), 0..4)) {
            let file = FaultFile { seed: Some(seed), rules };
            prop_assert_eq!(parse_faults(&file.to_string()).unwrap(), file.clone());
            let json = serde_json::json!({
                "seed": seed,
                "faults": file.rules.iter().map(|rule| fault_fields(rule).into_iter().collect::<std::collections::BTreeMap<_, _>>()).collect::<Vec<_>>(),
            });
            prop_assert_eq!(faults_of_json(&json).unwrap(), file);
        }

        #[test]
        fn any_text_gets_a_result_and_no_panic(text in "(seed = [0-9a-z\"-]{0,20}\n)?(\\[\\[faults\\]\\]\n([a-z]{3,8} = [0-9a-z\".-]{0,12}\n){0,6}){0,3}") {
            let _ = parse_faults(&text);
        }
    }
}
