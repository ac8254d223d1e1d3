# cases of dump_mm_e2e.py for fixtures/qwen3_omni.  ("audio", file, seconds, seed, f0)  ("image", file, height, width, seed)  ("video", file, height, width, frames, seed)
S = {"role": "system", "content": "You are a helpful assistant."}
SM = {"shortest_edge": 4096, "longest_edge": 786432}
U = lambda *c: {"role": "user", "content": list(c)}
cases = {
    "mm_audio_image_ethan": dict(
        messages=[
            S,
            U(("audio", "mm1_a", 2.137, 41, 140), ("image", "mm1_i", 64, 96, 42), "What do you hear in this audio?"),
        ],
        speaker="Ethan",
        n_text=8,
        n_frames=10,
    ),
    "mm_image_avvideo_chelsie": dict(
        messages=[S, U(("image", "mm2_i", 96, 64, 43), ("video", "mm2_v", 64, 96, 5, 44), "Describe the video.")],
        speaker="Chelsie",
        n_text=8,
        n_frames=10,
        fps=2.0,
        av=("audio", "mm2_va", 2.53, 45, 180),
        video_size=SM,
    ),
    "mm_avvideo_image_audio_fractional_aiden": dict(
        messages=[
            U(
                ("video", "mm3_v", 64, 64, 6, 46),
                ("image", "mm3_i", 64, 64, 47),
                ("audio", "mm3_a", 1.307, 48, 110),
                "What is in the image?",
            )
        ],
        speaker="Aiden",
        n_text=7,
        n_frames=9,
        fps=1.5,
        av=("audio", "mm3_va", 3.21, 49, 200),
        video_size=SM,
    ),
    "mm_two_audios_two_turns_aiden": dict(
        messages=[
            S,
            U(("audio", "mm4_a", 15370 / 16000, 50, 120), "Good morning!"),
            {"role": "assistant", "content": "Hello, I am a model."},
            U("What do you hear?", ("audio", "mm4_b", 2.413, 51, 230)),
        ],
        speaker="Aiden",
        n_text=8,
        n_frames=10,
    ),
    "mm_long_audio_ethan": dict(
        messages=[S, U(("audio", "mm5_a", 33.37, 52, 125), "What do you hear in this audio?")],
        speaker="Ethan",
        n_text=6,
        n_frames=8,
    ),
    "mm_three_images_chelsie": dict(
        messages=[
            S,
            U(
                ("image", "mm6_i", 64, 96, 53),
                "One",
                ("image", "mm6_j", 128, 64, 54),
                ("image", "mm6_k", 64, 64, 55),
                "What is in the image?",
            ),
        ],
        speaker="Chelsie",
        n_text=8,
        n_frames=10,
    ),
}
