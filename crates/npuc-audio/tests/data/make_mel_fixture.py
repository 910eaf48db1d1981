"""Writes mel.txt, the numbers that tests/mel.rs holds npuc-audio to: `python3 make_mel_fixture.py > mel.txt`.

Needs numpy only. It computes what Whisper's feature extractor publishes (openai/whisper, whisper/audio.py and transcribe.py) with
dense f64 matrices: Slaney's mel scale, filters of equal area, a periodic Hann window, reflection at both ends. A signal is made of
whole numbers, so that tests/mel.rs has the very same one without a file.

A line is: signal, samples, form, start, bands, frame, then one value a band.
Form `clip` is log_mel_spectrogram(pad_or_trim(audio[start:])); form `whole` is the window at frame `start` of
log_mel_spectrogram(audio, padding=480000), as transcribe() cuts it: pad_or_trim of the content frames.
"""
import numpy as np

RATE, N_FFT, HOP, WINDOW = 16000, 400, 160, 480000


def signal(kind, count):
    x, out = 1, np.zeros(count)
    for i in range(count):
        x = (1664525 * x + 1013904223) % 2**32
        noise, block = (x >> 16) - 32768, i // 8000
        if kind == "quiet":
            out[i] = noise >> 13
        elif kind == "end":
            out[i] = 32767 * (i == count - 1)
        elif block % 4 != 3:
            period = 23 + 17 * (block % 7)
            triangle = abs(2 * (i % period) - period) * 16384 // period - 8192
            out[i] = (noise >> (2 + block * 5 % 9)) + (triangle >> (block % 3))
    return out / 32768


def filters(bands):
    def hz(mel):
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    top = 15 + np.log(RATE / 2 / 1000) / (np.log(6.4) / 27)
    edges = hz(np.linspace(0, top, bands + 2))
    bins = np.arange(N_FFT // 2 + 1) * RATE / N_FFT
    rows = []
    for low, mid, high in zip(edges, edges[1:], edges[2:]):
        triangle = np.minimum((bins - low) / (mid - low), (high - bins) / (high - mid))
        rows.append(np.maximum(triangle, 0) * 2 / (high - low))
    return np.array(rows)


def log_mel(audio, bands):
    padded = np.pad(audio, N_FFT // 2, mode="reflect")
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP][:-1]
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    log = np.log10(np.maximum(filters(bands) @ power.T, 1e-10))
    return (np.maximum(log, log.max() - 8) + 4) / 4


def clip(audio, start, bands):
    audio = audio[start:start + WINDOW]
    return log_mel(np.pad(audio, (0, WINDOW - len(audio))), bands)


def whole(audio, start, bands):
    mel = log_mel(np.pad(audio, (0, WINDOW)), bands)
    mel = mel[:, :mel.shape[1] - 3000][:, start:start + 3000]
    return np.pad(mel, ((0, 0), (0, 3000 - mel.shape[1])))


CASES = [
    ("speech", 480000, clip, 0, [0, 1, 2, 777, 2998, 2999]),
    ("speech", 20001, clip, 0, [0, 60, 124, 125, 126, 127, 2999]),
    ("speech", 1120003, clip, 123, [0, 1500, 2999]),
    ("speech", 1120003, clip, 1000037, [0, 749, 750, 751, 752]),
    ("speech", 1120003, whole, 0, [0, 1, 2999]),
    ("speech", 1120003, whole, 3017, [0, 2999]),
    ("speech", 1120003, whole, 6500, [0, 499, 500, 2999]),
    ("end", 479, whole, 0, [0, 1, 2]),
    ("quiet", 16000, clip, 0, [0, 50, 101, 102]),
    ("quiet", 1, clip, 0, [0, 1, 2]),
    ("quiet", 0, clip, 0, [0]),
]

for kind, count, form, start, frames in CASES:
    audio = signal(kind, count)
    for bands in (80, 128):
        mel = form(audio, start, bands)
        for frame in frames if bands == 80 else frames[::2]:
            values = " ".join(f"{v:.6f}" for v in mel[:, frame])
            print(kind, count, form.__name__, start, bands, frame, values)
