//! The sizes for which graphs are captured.

/// Prompt positions of the smallest graph.
pub(crate) const LEAST_PROMPT: usize = 16;

/// Powers of two from `least` to the first that holds `most`.
pub(crate) fn sizes(least: usize, most: usize) -> impl Iterator<Item = usize> {
    let largest = most.max(least).next_power_of_two();
    std::iter::successors(Some(least), |size| Some(size * 2)).take_while(move |size| *size <= largest)
}

/// Prompt positions from which there is one graph between two powers of two, and from which there are three: rows of
/// padding cost what others do. A picture of 640 x 480 has 300 positions.
const HALVED: usize = 128;
const QUARTERED: usize = 256;

/// Positions of the passes over prompts: the largest holds `most`.
pub(crate) fn prompt_sizes(most: usize) -> impl Iterator<Item = usize> {
    let largest = most.max(LEAST_PROMPT).next_power_of_two();
    let quarters = move |size: usize| match size {
        QUARTERED.. if size < largest => [4, 5, 6, 7].as_slice(),
        HALVED.. if size < largest => &[4, 6],
        _ => &[4],
    };
    sizes(LEAST_PROMPT, most).flat_map(move |size| quarters(size).iter().map(move |quarter| size / 4 * quarter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_over_long_prompts_have_sizes_between_powers_of_two() {
        assert!(prompt_sizes(16).eq([16]));
        assert!(prompt_sizes(300).eq([16, 32, 64, 128, 192, 256, 320, 384, 448, 512]));
    }
}
