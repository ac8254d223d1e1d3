//! The two nets of a [`CodeAligner`], made by `training/train_aligner.py`, whose page tells their shapes.

use super::path::{Path, Penalties};
use super::{Aligner, Alignment, Heard, QUARTERS, WordSpan};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Frames on each side of a frame that its scores depend on.
const BESIDE: usize = 2;
/// Letters on each side of a letter that its phonemes depend on.
const LETTERS_BESIDE: usize = 4;
/// Rows of the letters' table: none, a to z, the apostrophe, any other letter.
const LETTERS: usize = 29;
/// Phonemes of a letter at most.
const PHONEMES_OF_A_LETTER: usize = 3;
const PARTS: usize = QUARTERS as usize;

/// The tensors of an aligner by name: shape and values, row after row.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// An aligner of codes.
#[derive(Clone, Debug)]
pub struct CodeAligner(Arc<Net>);

#[derive(Debug)]
struct Net {
    /// Codes of a frame, of which the first `groups` are read.
    frame: usize,
    groups: usize,
    codes: Table,
    sound: Linear,
    /// `PARTS` times as many scores as there are phonemes.
    score: Linear,
    /// Subtracted from the log probability of each phoneme.
    prior: Vec<f32>,
    letters: Table,
    spell: Linear,
    spelled: Linear,
    /// The phonemes of each class of `spelled`.
    classes: Vec<Vec<u16>>,
    penalties: Penalties,
}

/// Vectors of `width` numbers.
#[derive(Debug)]
struct Table {
    width: usize,
    values: Vec<f32>,
}

impl Table {
    /// Row `at`, `None` behind the end.
    fn row(&self, at: usize) -> Option<&[f32]> {
        self.values.get(at * self.width..(at + 1) * self.width)
    }
}

/// `weight [outputs, inputs]` and `bias [outputs]`.
#[derive(Debug)]
struct Linear {
    weight: Table,
    bias: Vec<f32>,
}

impl Linear {
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let rows = self.weight.values.chunks_exact(self.weight.width);
        rows.zip(&self.bias).map(|(row, bias)| bias + row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>()).collect()
    }

    fn apply_relu(&self, x: &[f32]) -> Vec<f32> {
        self.apply(x).into_iter().map(|y| y.max(0.0)).collect()
    }
}

/// Takes tensors out and checks their shapes.
struct Reader(Tensors);

impl Reader {
    /// The tensor; a length of 0 in `shape` takes any but none.
    fn take<const N: usize>(&mut self, name: &str, shape: [usize; N]) -> Result<([usize; N], Vec<f32>), String> {
        let (found, values) = self.0.remove(name).ok_or_else(|| format!("has no tensor {name}"))?;
        let fits = |(found, wanted): (&usize, &usize)| *found > 0 && (*wanted == 0 || found == wanted);
        let right = found.len() == N && found.iter().zip(&shape).all(fits);
        if !right || values.len() != found.iter().product::<usize>() {
            return Err(format!("{name} has the shape {found:?}, expected {shape:?} (0: any)"));
        }
        if !values.iter().all(|value| value.is_finite()) {
            return Err(format!("{name} holds a number that is not finite"));
        }
        let found = <[usize; N]>::try_from(found).map_err(|_| format!("{name} has another number of dimensions"))?;
        Ok((found, values))
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Linear, String> {
        let ([outputs, width], values) = self.take(&format!("{name}.weight"), [outputs, inputs])?;
        let (_, bias) = self.take(&format!("{name}.bias"), [outputs])?;
        Ok(Linear { weight: Table { width, values }, bias })
    }
}

impl CodeAligner {
    /// From the tensors of its file, for a talker with `groups` codes in a frame.
    ///
    /// # Errors
    /// What is wrong with a tensor.
    pub fn new(tensors: Tensors, groups: usize) -> Result<CodeAligner, String> {
        let mut read = Reader(tensors);
        let ([read_groups, _, width], values) = read.take("codes", [0, 0, 0])?;
        if read_groups > groups {
            return Err(format!("reads {read_groups} codes of a frame, and the talker makes {groups}"));
        }
        let codes = Table { width, values };
        let sound = read.linear("sound", 0, (2 * BESIDE + 1) * width)?;
        let ([phonemes], prior) = read.take("prior", [0])?;
        let score = read.linear("score", PARTS * phonemes, sound.bias.len())?;
        let ([_, width], values) = read.take("letters", [LETTERS, 0])?;
        let letters = Table { width, values };
        let spell = read.linear("spell", 0, (2 * LETTERS_BESIDE + 1) * width)?;
        let spelled = read.linear("spelled", 0, spell.bias.len())?;
        let (_, values) = read.take("classes", [spelled.bias.len(), PHONEMES_OF_A_LETTER])?;
        let classes: Vec<Vec<u16>> = values
            .chunks_exact(PHONEMES_OF_A_LETTER)
            .map(|class| class.iter().map(|phoneme| *phoneme as u16).filter(|phoneme| *phoneme > 0).collect())
            .collect();
        if classes.iter().flatten().any(|phoneme| usize::from(*phoneme) >= phonemes) {
            return Err(format!("classes name a phoneme that is none of {phonemes}"));
        }
        let (_, penalties) = read.take("penalties", [2])?;
        let penalties = Penalties { skip: penalties[0], silence: penalties[1] };
        let (frame, groups) = (groups, read_groups);
        let net = Net { frame, groups, codes, sound, score, prior, letters, spell, spelled, classes, penalties };
        Ok(CodeAligner(Arc::new(net)))
    }

    /// The phonemes of a word as it is spoken, by their numbers from 1: none where it has no letters.
    pub fn phonemes(&self, word: &str) -> Vec<u16> {
        word.split(|c: char| !c.is_alphabetic() && !is_apostrophe(c)).flat_map(|part| self.0.spell(part)).collect()
    }
}

impl Aligner for CodeAligner {
    fn begin(&self, words: &[String]) -> Box<dyn Alignment> {
        let words: Vec<_> = words.iter().map(|word| self.phonemes(word)).collect();
        let path = Path::new(&words, self.0.penalties);
        Box::new(Listening { net: Arc::clone(&self.0), path, window: Vec::new(), came: 0 })
    }
}

fn is_apostrophe(c: char) -> bool {
    matches!(c, '\'' | '’')
}

/// The row of a letter.
fn letter(c: char) -> usize {
    match c.to_lowercase().next().unwrap_or(c) {
        c @ 'a'..='z' => c as usize - 'a' as usize + 1,
        c if is_apostrophe(c) => 27,
        _ => 28,
    }
}

impl Net {
    /// The phonemes of letters without white space.
    fn spell(&self, letters: &str) -> Vec<u16> {
        if !letters.chars().any(char::is_alphabetic) {
            return Vec::new();
        }
        let rows: Vec<usize> = letters.chars().map(letter).collect();
        let mut phonemes = Vec::new();
        for at in 0..rows.len() {
            let mut x = Vec::with_capacity(self.spell.weight.width);
            for near in 0..=2 * LETTERS_BESIDE {
                let row = (at + near).checked_sub(LETTERS_BESIDE).and_then(|at| rows.get(at)).copied().unwrap_or(0);
                x.extend_from_slice(self.letters.row(row).unwrap_or_default());
            }
            let scores = self.spelled.apply(&self.spell.apply_relu(&x));
            let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b]).then(b.cmp(a)));
            phonemes.extend(best.and_then(|best| self.classes.get(best)).into_iter().flatten());
        }
        phonemes
    }

    /// A frame as a vector: the sum of those of its codes.
    fn embed(&self, frame: &[u32]) -> Vec<f32> {
        let codebook = self.codes.values.len() / self.codes.width / self.groups;
        let mut x = vec![0.0; self.codes.width];
        for (group, code) in frame.iter().take(self.groups).enumerate() {
            let row = self.codes.row(group * codebook + (*code as usize).min(codebook - 1));
            x.iter_mut().zip(row.into_iter().flatten()).for_each(|(x, y)| *x += y);
        }
        x
    }

    /// The scores of all phonemes in each quarter of the middle frame of `2 BESIDE + 1`.
    fn scores(&self, window: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let scores = self.score.apply(&self.sound.apply_relu(&window.concat()));
        scores.chunks_exact(self.prior.len()).map(|quarter| minus_prior(quarter, &self.prior)).collect()
    }
}

/// Log probabilities less the prior.
fn minus_prior(logits: &[f32], prior: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total = most + logits.iter().map(|x| (x - most).exp()).sum::<f32>().ln();
    logits.iter().zip(prior).map(|(x, prior)| x - total - prior).collect()
}

/// The alignment of one piece.
struct Listening {
    net: Arc<Net>,
    path: Path,
    /// The last frames, `2 BESIDE + 1` at most.
    window: Vec<Vec<f32>>,
    /// Frames that have come.
    came: usize,
}

impl Listening {
    fn push(&mut self, frame: Vec<f32>) -> Vec<WordSpan> {
        if self.window.is_empty() {
            self.window.resize(BESIDE, vec![0.0; frame.len()]);
        }
        self.window.push(frame);
        if self.window.len() <= 2 * BESIDE {
            return Vec::new();
        }
        let scores = self.net.scores(&self.window);
        self.window.remove(0);
        scores.iter().for_each(|quarter| self.path.step(quarter));
        self.path.settle()
    }
}

impl Alignment for Listening {
    fn hear(&mut self, heard: Heard<'_>) -> Vec<WordSpan> {
        let frames = heard.codes.chunks_exact(self.net.frame);
        self.came += frames.len();
        frames.flat_map(|frame| self.push(self.net.embed(frame))).collect()
    }

    fn finish(&mut self) -> Vec<WordSpan> {
        let mut words = Vec::new();
        for _ in 0..BESIDE.min(self.came) {
            words.extend(self.push(vec![0.0; self.net.codes.width]));
        }
        self.came = 0;
        words.extend(self.path.finish());
        words
    }
}

#[cfg(test)]
mod tests;
