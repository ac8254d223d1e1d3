//! JSON that costs more than its bytes.

use crate::support::attack::Attacked;
use crate::support::http::Ask;

#[test]
fn json_of_millions_of_objects_is_refused_before_a_tree_is_built() {
    let attacked = Attacked::embedded("");
    let body = format!("[{}{{}}]", "{\"\":0},".repeat((15 << 20) / 7));
    let ask = Ask::text("/v1/audio/speech", body);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let reply = ask.send(attacked.url());
                assert!([400, 503].contains(&reply.status), "{}", reply.status);
            });
        }
        attacked.neighbour_is_served();
    });
    attacked.is_as_before();
}
