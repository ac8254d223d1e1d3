use super::super::{Markup, marks};
use super::*;
use proptest::prelude::*;

fn read(inside: &str) -> Vec<Mark> {
    marks(Markup::Ssml, &format!("<speak>{inside}</speak>")).unwrap()
}

fn error(text: &str) -> String {
    marks(Markup::Ssml, text).unwrap_err().to_string()
}

fn text(text: &str) -> Mark {
    Mark::Text(text.to_owned())
}

fn literal(text: &str) -> Mark {
    Mark::Literal(text.to_owned())
}

fn pause(milliseconds: u64) -> Mark {
    Mark::Pause(Duration::from_millis(milliseconds))
}

#[test]
fn elements_become_marks_in_the_order_in_which_they_are_heard() {
    let document = "<?xml version=\"1.0\"?>\n<!-- a greeting -->\n\
                    <speak version=\"1.1\" xmlns=\"http://www.w3.org/2001/10/synthesis\" xml:lang=\"en\">\n  \
                    Hi &amp; <voice name=\"Alto\">hello<break time=\"200ms\"/></voice>\n\
                    <prosody rate=\"slow\">so</prosody></speak>\n";
    let read = marks(Markup::Ssml, document).unwrap();
    let expected = [
        text("   Hi & "),
        Mark::Voice { name: Some("Alto".to_owned()), place: Place { line: 4, column: 12 } },
        text("hello"),
        pause(200),
        Mark::Voice { name: None, place: Place { line: 4, column: 57 } },
        text(" "),
        Mark::Rate(0.75),
        text("so"),
        Mark::Rate(1.0),
    ];
    assert_eq!(read, expected);
}

#[test]
fn paragraphs_and_sentences_are_borders_and_lines_of_the_file_are_not() {
    assert_eq!(
        read("<p>One\n\n\ntwo</p><p><s>Three.</s>\n<s>Four</s>five</p>"),
        [text("\n\nOne   two\n\n\n\nThree.   Four\n\nfive\n\n")]
    );
}

#[test]
fn breaks_have_a_time_or_a_strength() {
    let breaks = "<break/><break strength='x-weak'/><break strength='strong' time='1.5s'/><break strength='none'/>";
    assert_eq!(read(breaks), [pause(750), pause(250), pause(1500)]);
}

#[test]
fn words_are_said_as_their_element_tells() {
    let read = read("The <sub alias='jif'>GIF</sub> <say-as interpret-as='characters'> ab </say-as>");
    assert_eq!(read, [text("The "), literal("jif"), text(" "), literal("A B")]);
}

#[test]
fn inner_rates_and_voices_end_with_their_element() {
    let read = read("<prosody rate='50%'>a<prosody rate='200%'>b</prosody>c</prosody>");
    let rates: Vec<&Mark> = read.iter().filter(|mark| matches!(mark, Mark::Rate(_))).collect();
    assert_eq!(rates, [&Mark::Rate(0.5), &Mark::Rate(2.0), &Mark::Rate(0.5), &Mark::Rate(1.0)]);
}

#[test]
fn an_error_says_where_it_is_and_what_is_allowed() {
    for (wrong, place, told) in [
        ("Hello", "line 1, column 1", "one <speak> element; found text outside"),
        ("", "line 1, column 1", "which is missing"),
        ("<p>x</p>", "line 1, column 1", "one <speak> element; found <p>"),
        ("<speak/><speak/>", "line 1, column 9", "one <speak> element"),
        (
            "<speak>\n <emphasis>x</emphasis></speak>",
            "line 2, column 2",
            "<emphasis> is not supported; known are speak",
        ),
        ("<speak><phoneme ph='x'>a</phoneme></speak>", "line 1, column 8", "takes phonemes"),
        ("<speak><prosody pitch='high'>x</prosody></speak>", "line 1, column 8", "it takes rate"),
        ("<speak><prosody>x</prosody></speak>", "line 1, column 8", "needs a rate"),
        ("<speak><p class='x'>x</p></speak>", "line 1, column 8", "it takes no attributes"),
        ("<speak><break time='11s'/></speak>", "line 1, column 8", "a pause may have 10 s"),
        ("<speak><break strength='huge'/></speak>", "line 1, column 8", "none, x-weak"),
        ("<speak><say-as interpret-as='date'>x</say-as></speak>", "line 1, column 8", "characters (or spell-out"),
        ("<speak><say-as interpret-as='digits'>x</say-as></speak>", "line 1, column 39", "it must be digits"),
        ("<speak><sub alias='a'><break/></sub></speak>", "line 1, column 23", "<sub> has no elements inside"),
        ("<speak>&nbsp;</speak>", "line 1, column 8", "&nbsp; is unknown; known are &amp;"),
        ("<speak>a & b</speak>", "line 1, column", "this is not XML"),
        ("<speak><p>x</s></speak>", "line 1, column", "this is not XML"),
        ("<speak>x", "line 1, column 9", "<speak> is not closed"),
        ("<!DOCTYPE speak [<!ENTITY a 'b'>]><speak>&a;</speak>", "line 1, column 1", "document type is not allowed"),
        ("<speak><?php x ?></speak>", "line 1, column 8", "processing instruction"),
        ("<speak><voice name=''>x</voice></speak>", "line 1, column 8", "a voice needs a name"),
    ] {
        let error = error(wrong);
        assert!(error.starts_with(place) && error.contains(told), "{wrong}: {error}");
    }
}

#[test]
fn depth_and_elements_are_limited() {
    let deep = format!("<speak>{}", "<p>".repeat(1_000_000));
    assert!(error(&deep).contains("16 deep"));
    let many = format!("<speak>{}</speak>", "<s/>".repeat(500));
    assert!(error(&many).contains("500 tags"));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(
        parts in prop::collection::vec(prop_oneof![
            Just("<speak>"), Just("</speak>"), Just("<p>"), Just("</p>"), Just("<break/>"), Just("&amp;"), Just("&#0;"),
            Just("<sub alias=\"x\">"), Just("</sub>"), Just("<![CDATA[x]]>"), Just("<!--"), Just("-->"), Just("é"),
            Just("<say-as interpret-as=\"digits\">"), Just("</say-as>"), Just("1"), Just("<"), Just("\"'"), Just("\u{0}"),
        ], 0..30),
    ) {
        let text = parts.concat();
        if let Err(error) = marks(Markup::Ssml, &text) {
            prop_assert!(error.place.line == 1 && error.place.column <= text.chars().count() + 1, "{error}");
        }
    }
}
