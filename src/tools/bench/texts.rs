//! What is spoken when the user gives no texts: short everyday sentences of different lengths.

use anyhow::{Context, ensure};
use std::path::Path;

const BUILT_IN: [&str; 24] = [
    "The weather is lovely today.",
    "Please close the window before you leave.",
    "The train to the city leaves in ten minutes.",
    "She put the letter on the kitchen table.",
    "We walked along the river until it was dark.",
    "The children are playing in the garden.",
    "He opened the door and looked outside.",
    "It takes about an hour to get there.",
    "There is some bread left in the basket.",
    "The old man told us a story about the sea.",
    "I would like a cup of tea with milk.",
    "The lights went out during the storm.",
    "A small bird sat on the fence.",
    "They built the house on top of the hill.",
    "My sister plays the piano every evening.",
    "The road was closed because of the snow.",
    "We found the key under the mat.",
    "The soup is still too hot to eat.",
    "He has been working there for many years.",
    "The book fell from the shelf.",
    "Turn left at the next corner.",
    "The sky turned red in the evening.",
    "She bought a new pair of shoes.",
    "The dog slept in front of the fire.",
];

/// The lines of a file, or the built-in sentences.
pub fn texts(file: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let Some(path) = file else { return Ok(BUILT_IN.map(str::to_owned).to_vec()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    ensure!(!lines.is_empty(), "{} has no text in it: write one text per line", path.display());
    Ok(lines)
}
