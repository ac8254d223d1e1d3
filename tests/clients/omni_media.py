"""What the tests of a model that hears and sees show it: a picture like a photograph, and a recording."""

import struct
import zlib

import numpy

SIDES = (800, 600)
RATE = 16000
SECONDS = 3


def photograph():
    """A sky, a sun, hills and grass, with the grain of a camera: a png."""
    width, height = SIDES
    grain = numpy.random.default_rng(7).normal(0, 6, (height, width, 3))
    y, x = numpy.mgrid[0:height, 0:width]
    picture = numpy.empty((height, width, 3))
    picture[:] = numpy.stack([90 + y / 6, 140 + y / 8, 235 - y / 12], axis=2)
    for far, (red, green, blue) in ((0.55, (96, 120, 150)), (0.68, (60, 104, 70)), (0.8, (84, 132, 52))):
        ridge = height * (far - 0.06 * numpy.sin(x / 97 + 9 * far) - 0.03 * numpy.sin(x / 31 + far))
        picture[y > ridge] = (red, green, blue)
    picture[(x - 610) ** 2 + (y - 120) ** 2 < 52**2] = (255, 236, 170)
    rows = numpy.clip(picture + grain, 0, 255).astype(numpy.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(lines, 6)), (b"IEND", b"")]
    pack = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return b"\x89PNG\r\n\x1a\n" + b"".join(pack(*chunk) for chunk in chunks)


def recording():
    """Three seconds of a voice's vowels, one after the other, with breath: a wav."""
    at = numpy.arange(RATE * SECONDS) / RATE
    pitch = numpy.cumsum(118 + 14 * numpy.sin(2 * numpy.pi * 0.7 * at)) / RATE
    sound = numpy.zeros(len(at))
    for number, formants in enumerate([(730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410)]):
        part = (at >= number) & (at < number + 1)
        for harmonic in range(1, 34):
            hertz = 118 * harmonic
            loud = sum(numpy.exp(-(((hertz - formant) / 140) ** 2)) for formant in formants) + 0.02
            sound[part] += loud / harmonic**0.5 * numpy.sin(2 * numpy.pi * harmonic * pitch[part])
    sound *= 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.minimum(at % 1, 0.5))
    sound += numpy.random.default_rng(3).normal(0, 0.01, len(at))
    samples = (12000 * sound / numpy.abs(sound).max()).astype("<i2").tobytes()
    head = struct.pack("<I4s4sIHHIIHH4sI", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", len(samples))
    return b"RIFF" + head + samples
