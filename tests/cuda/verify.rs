//! The golden cases on a GPU.

use crate::support::golden::{batches_pass, passes};
use omni_actors::config::Precision;
use omni_actors::tools::verify;

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_says_what_the_reference_says_in_f32_and_nearly_so_in_bf16() {
    for precision in [Precision::F32, Precision::Bf16] {
        let gpu = verify::gpu(0, precision).unwrap();
        passes(gpu.as_ref());
        batches_pass(gpu.as_ref());
    }
}
