use super::*;
use crate::api::Detail;
use omni_model::weights::Files;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const MIB: usize = 1 << 20;
const OWNER: MediaHash = [1; 32];

fn preparer(change: impl FnOnce(&mut MediaInputConfig)) -> Preparer {
    helped(3, change)
}

fn helped(helpers: usize, change: impl FnOnce(&mut MediaInputConfig)) -> Preparer {
    let files = Files::folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_omni")).unwrap();
    let mut config = Config::default().media;
    config.ffmpeg = Some("/no/such/ffmpeg".into());
    change(&mut config);
    let front = MediaConfig::load(&files).unwrap();
    Preparer::with(front, Senses { hears: true, sees: true }, 8_000, &config, Decoders::in_thread(helpers)).unwrap()
}

fn wav(samples: u32) -> Arc<[u8]> {
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data".to_vec();
    file[4..8].copy_from_slice(&(36 + 2 * samples).to_le_bytes());
    file.extend((2 * samples).to_le_bytes());
    // No second of it is like another.
    let sample = |i: u32| ((i.wrapping_mul(2_654_435_761) >> 12) % 2000) as i16 - 1000;
    file.extend((0..samples).flat_map(|i| sample(i).to_le_bytes()));
    file.into()
}

fn bmp(width: u32, height: u32) -> Arc<[u8]> {
    let line = (width * 3).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    for field in [54 + line * height, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        file.extend(field.to_le_bytes());
    }
    file.extend((0..line * height).map(|i| (i * 7) as u8));
    file.into()
}

/// Two pixels that take turns, each for half a second.
fn gif(frames: u16) -> Arc<[u8]> {
    let mut file = b"GIF89a\x01\0\x01\0\x80\0\0\x10\x80\xf0\xff\x40\x20\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0".to_vec();
    for number in 0..frames {
        file.extend(b"\x21\xf9\x04\0\x32\0\0\0\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02");
        file.extend(if number % 2 == 0 { b"\x44\x01\0" } else { b"\x4c\x01\0" });
    }
    file.push(b';');
    file.into()
}

fn image(file: Arc<[u8]>) -> MediaSource {
    MediaSource::Image { file, detail: Detail::Auto }
}

fn film(file: Arc<[u8]>) -> MediaSource {
    MediaSource::Video { file, hear: false, frames_per_second: None }
}

fn medium(index: usize, says: &str, error: SubmitError) {
    in_frame(index, None, says, error);
}

fn in_frame(index: usize, frame: Option<usize>, says: &str, error: SubmitError) {
    let SubmitError::Medium { index: at, frame: of, message } = error else { panic!("{error}") };
    assert!((at, of) == (index, frame) && message.contains(says), "{at}: {message}");
}

#[tokio::test]
async fn files_become_media_in_their_order_and_memory_is_theirs_as_long_as_they_are_held() {
    let preparer = preparer(|_| {});
    let all = preparer.0.memory.free();
    let frames = MediaSource::Frames { pictures: vec![bmp(64, 32); 3], frames_per_second: 1.0 };
    let sources = vec![image(bmp(100, 50)), MediaSource::Audio(wav(16_000)), film(gif(4)), frames];
    let prepared = preparer.prepare(sources, OWNER).await.unwrap();
    let [image, sound, animation, list] = prepared.media.as_slice() else { panic!("four media") };
    let Medium::Image(patches) = &**image else { panic!("an image first") };
    assert_eq!((patches.size().width, patches.size().height), (96, 64));
    let Medium::Audio(spectrum) = &**sound else { panic!("then sound") };
    assert_eq!(spectrum.frames(), 100);
    let Medium::Video { frames, second_per_grid, sound: None } = &**animation else { panic!("then an animation") };
    // Two seconds, two frames of each, in pairs.
    assert_eq!((frames.frames().len(), *second_per_grid), (4, 1.0));
    assert_ne!(frames.frames()[0], frames.frames()[1]);
    let Medium::Video { frames, second_per_grid, .. } = &**list else { panic!("then a list of frames") };
    assert_eq!((frames.grid().t, *second_per_grid), (2, 2.0));
    assert_eq!((prepared.tokens.audio, prepared.tokens.image), (13, 6));
    assert!(prepared.tokens.video > 0);
    let held = all - preparer.0.memory.free();
    let bytes: usize = prepared.media.iter().map(|medium| medium.bytes()).sum();
    assert!(held >= bytes && held < bytes + 1024, "{held} bytes for {bytes}");
    drop(prepared);
    assert_eq!(preparer.0.memory.free(), all);
}

#[tokio::test]
async fn a_medium_that_cannot_be_is_refused_with_its_number_and_the_limit() {
    let small = preparer(|config| {
        (config.max_files, config.max_bytes, config.max_pixels) = (3, 40_000, 5_000);
        (config.max_seconds, config.max_frames) = (1, 4);
    });
    let all = small.0.memory.free();
    let refused = async |sources: Vec<MediaSource>| small.prepare(sources, OWNER).await.map(|_| ()).unwrap_err();
    let good = || image(bmp(8, 8));
    medium(1, "not an image file", refused(vec![good(), image(b"text"[..].into())]).await);
    medium(0, "10000 pixels, at most 5000", refused(vec![image(bmp(100, 100))]).await);
    medium(2, "max_bytes", refused(vec![good(), good(), image(bmp(200, 200))]).await);
    medium(0, "0 bytes", refused(vec![image([][..].into())]).await);
    medium(1, "all sound of a request may last 1 s", refused(vec![MediaSource::Audio(wav(9_000)); 2]).await);
    medium(0, "longer than 1 seconds", refused(vec![MediaSource::Audio(wav(16_500))]).await);
    medium(0, "install the package ffmpeg", refused(vec![film(b"\0\0\0\x18ftypmp42"[..].into())]).await);
    let frames = |count| MediaSource::Frames { pictures: vec![bmp(8, 8); count], frames_per_second: 2.0 };
    medium(0, "5 frames, 1 to 4 are taken", refused(vec![frames(5)]).await);
    medium(1, "6 frames, at most 4", refused(vec![frames(3), frames(3)]).await);
    medium(0, "frames of one size", {
        let pictures = vec![bmp(8, 8), bmp(8, 80)];
        refused(vec![MediaSource::Frames { pictures, frames_per_second: 2.0 }]).await
    });
    let many = refused(vec![good(), good(), good(), good()]).await;
    assert!(many.to_string().contains("media.max_files"), "{many}");
    assert_eq!(small.0.memory.free(), all);
}

#[tokio::test]
async fn pictures_side_by_side_are_those_of_one_thread() {
    let uneven = MediaSource::Frames { pictures: vec![bmp(40, 40), bmp(40, 400)], frames_per_second: 2.0 };
    let list = MediaSource::Frames { pictures: vec![bmp(64, 96); 21], frames_per_second: 2.0 };
    let low = MediaSource::Image { file: bmp(900, 900), detail: Detail::Low };
    let sources =
        vec![image(bmp(300, 200)), low, list, MediaSource::Audio(wav(8_000)), image(bmp(33, 44)), film(gif(4))];
    let mut all = Vec::new();
    for helpers in [0, 1, 3] {
        let prepared = helped(helpers, |_| {}).prepare(sources.clone(), OWNER).await.unwrap();
        all.push((prepared.tokens, prepared.media));
        let told = helped(helpers, |_| {}).prepare(vec![image(bmp(9, 9)), uneven.clone()], OWNER).await;
        medium(1, "frames of one size", told.map(|_| ()).unwrap_err());
    }
    assert!(all[0] == all[1] && all[0] == all[2]);
}

#[tokio::test]
async fn the_first_that_is_wrong_is_told_with_the_number_of_its_frame() {
    let (good, bad): (Arc<[u8]>, Arc<[u8]>) = (bmp(40, 40), b"no picture"[..].into());
    let list = |wrong: &[usize]| {
        let file = |number| Arc::clone(if wrong.contains(&number) { &bad } else { &good });
        MediaSource::Frames { pictures: (0..20).map(file).collect(), frames_per_second: 1.0 }
    };
    for helpers in [0, 3] {
        let refused = async |sources| helped(helpers, |_| {}).prepare(sources, OWNER).await.map(|_| ()).unwrap_err();
        let not = "not an image file";
        in_frame(0, Some(13), not, refused(vec![list(&[13, 14, 19])]).await);
        in_frame(1, Some(2), not, refused(vec![image(good.clone()), list(&[2]), image(bad.clone())]).await);
        medium(0, "not an audio file", refused(vec![MediaSource::Audio(bad.clone()), list(&[0])]).await);
        in_frame(0, Some(5), "0 bytes", {
            let pictures = (0..7).map(|n| if n == 5 { [][..].into() } else { good.clone() }).collect();
            refused(vec![MediaSource::Frames { pictures, frames_per_second: 1.0 }]).await
        });
    }
}

#[tokio::test]
async fn pictures_take_no_more_tokens_than_the_model_has() {
    let preparer = preparer(|config| (config.max_memory, config.max_seen_pixels) = (512 * MIB, 1 << 28));
    // 4,096 tokens each.
    let sources = vec![image(bmp(2_048, 2_048)); 3];
    medium(1, "detail", preparer.prepare(sources.clone(), OWNER).await.map(|_| ()).unwrap_err());
    let low = |source| match source {
        MediaSource::Image { file, .. } => MediaSource::Image { file, detail: Detail::Low },
        other => other,
    };
    let prepared = preparer.prepare(sources.into_iter().map(low).collect(), OWNER).await.unwrap();
    assert_eq!(prepared.tokens.image, 3 * 256);
}

#[tokio::test]
async fn a_request_that_could_need_more_than_there_is_is_refused_before_anything_is_decoded() {
    let small = preparer(|config| (config.max_memory, config.max_seen_pixels) = (16 * MIB, 1 << 28));
    let error = small.prepare(vec![image(bmp(8, 8))], OWNER).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("media.max_memory"), "{error}");
    let low = MediaSource::Image { file: bmp(8, 8), detail: Detail::Low };
    assert!(small.prepare(vec![low], OWNER).await.is_ok());
}

#[tokio::test]
async fn many_at_once_stay_within_the_memory_and_end_in_media_or_a_clear_error() {
    let preparer = preparer(|config| config.max_memory = 64 * MIB);
    let picture = bmp(1_000, 1_000);
    let asked = (0..40).map(|_| {
        let preparer = preparer.clone();
        let source = MediaSource::Image { file: Arc::clone(&picture), detail: Detail::Low };
        tokio::spawn(async move { preparer.prepare(vec![source], OWNER).await })
    });
    let mut prepared = 0;
    for asked in asked.collect::<Vec<_>>() {
        // A semaphore never gives more than it has; each prepared one gives back what it held.
        assert!(asked.await.unwrap().unwrap().memory.is_some());
        prepared += 1;
    }
    assert_eq!((prepared, preparer.0.memory.free()), (40, 64 * MIB));
}

#[tokio::test]
async fn clients_that_leave_the_queue_give_their_places_and_further_ones_are_told() {
    let preparer = preparer(|_| {});
    let turns = Arc::clone(&preparer.0.turns).acquire_many_owned(preparer.0.decoders.at_once() as u32).await.unwrap();
    let source = || vec![image(bmp(8, 8))];
    let mut context = Context::from_waker(Waker::noop());
    let mut queue: Vec<_> = (0..WAITING).map(|_| Box::pin(preparer.prepare(source(), OWNER))).collect();
    assert!(queue.iter_mut().all(|one| one.as_mut().poll(&mut context).is_pending()));
    let Poll::Ready(Err(SubmitError::Busy(told))) = pin!(preparer.prepare(source(), OWNER)).poll(&mut context) else {
        panic!("the queue is full")
    };
    assert!(told.contains("64 requests"), "{told}");
    queue.pop();
    assert!(pin!(preparer.prepare(source(), OWNER)).poll(&mut context).is_pending());
    drop(queue);
    assert_eq!(preparer.0.waiting.load(Ordering::Relaxed), 0);
    drop(turns);
    assert!(preparer.prepare(source(), OWNER).await.is_ok());
}

#[tokio::test]
async fn speech_is_heard_as_any_sound_and_only_what_is_new_of_it_is_computed() {
    let preparer = preparer(|_| {});
    let heard = async |source, owner| preparer.prepare(vec![source], owner).await.unwrap().media.swap_remove(0);
    let kept = || preparer.0.spectra.bytes();
    for (samples, owner, seconds) in [(8_000 * 3, 1, 2), (8_000 * 5, 1, 4), (8_000 * 5, 1, 4), (8_000 * 3, 2, 6)] {
        // At 8 kHz, the rate of telephones.
        let mut file = wav(samples).to_vec();
        file[24..28].copy_from_slice(&8_000u32.to_le_bytes());
        let file: Arc<[u8]> = file.into();
        let speech = heard(MediaSource::Speech(Arc::clone(&file)), [owner; 32]).await;
        assert!(speech == heard(MediaSource::Audio(file), [owner; 32]).await, "{samples} samples");
        // 100 frames of 128 bands.
        assert_eq!(kept() / (100 * 128 * 8), seconds);
    }
}
