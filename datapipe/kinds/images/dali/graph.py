"""The DALI graph: bytes and one `Cuts` per sample in, finished uint8 rows out. The same on CPUs and GPUs."""

from __future__ import annotations

from typing import Any

from nvidia.dali import Pipeline, fn, types

from datapipe.kinds.images.dali.settings import GraphOptions

DECODER = "decoder"  # the name of the operator that decodes

# Inputs of the graph, fed at every run: name -> (rank of a sample, dtype).
_INPUTS: dict[str, tuple[int, Any]] = {
    "encoded": (1, types.UINT8),
    "region_at": (1, types.INT32),
    "region_size": (1, types.INT32),
    "size": (1, types.FLOAT),
    "window_at": (1, types.INT32),
    "flip_vertical": (0, types.INT32),
    "flip_horizontal": (0, types.INT32),
}


def build_graph(options: GraphOptions) -> Any:
    """Return a built pipeline with one output, (height, width, 3) uint8 per sample. Raises RuntimeError as DALI does."""
    pipeline = Pipeline(
        batch_size=options.max_batch_size,
        num_threads=options.num_threads,
        device_id=options.device_id,
        prefetch_queue_depth=1,  # several pipelines run side by side instead
    )
    with pipeline:
        pipeline.set_outputs(_images(options))
    pipeline.build()
    return pipeline


def decoder_device(pipeline: Any) -> str:
    """Return where the decoder of a built pipeline leaves its images: "gpu" or "cpu"."""
    (decoder,) = (operator for operator in pipeline._ops if operator.name == DECODER)
    return str(decoder.spec.OutputDevice(0))


def _images(options: GraphOptions) -> Any:
    images = _decoded(options)
    interpolation = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC}[options.form.interpolation]
    common = {"interp_type": interpolation, "antialias": True, "subpixel_scale": False}
    if options.form.is_windowed:
        images = fn.resize(images, size=_input("size"), **common)
        images = fn.slice(
            images,
            start=_input("window_at"),
            shape=[options.height, options.width],
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=[float(value) for value in options.form.fill],
        )
    else:
        images = fn.resize(images, size=[options.height, options.width], **common)
    return fn.flip(images, vertical=_input("flip_vertical"), horizontal=_input("flip_horizontal"))


def _decoded(options: GraphOptions) -> Any:
    """Return each sample's region as PIL would decode it: EXIF orientation not applied, halved chroma interpolated."""
    on_gpu = options.device_id is not None
    how: dict[str, Any] = {"name": DECODER, "device": "mixed" if on_gpu else "cpu"}
    how |= {"adjust_orientation": False, "jpeg_fancy_upsampling": True}
    if on_gpu:
        how["hw_decoder_load"] = options.hw_decoder_load
        how["hybrid_huffman_threshold"] = options.hybrid_huffman_threshold
        how["affine"] = False  # otherwise the threads of every pipeline are pinned to the same first cores
    region = {"start": _input("region_at"), "shape": _input("region_size"), "axes": [0, 1]}
    if options.decodes_regions:
        return fn.decoders.image_slice(_input("encoded"), **region, **how)
    return fn.slice(fn.decoders.image(_input("encoded"), **how), **region)


def _input(name: str) -> Any:
    ndim, dtype = _INPUTS[name]
    return fn.external_source(name=name, ndim=ndim, dtype=dtype, batch=True, no_copy=True)
