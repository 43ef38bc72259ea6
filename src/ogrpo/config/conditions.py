"""The options of a `TrainConfig` that act, or fit the others, under a condition alone.

Rows are options, a condition, and what to do or to know where it does not hold. Conditions of the
algorithm are in `ogrpo.config.method`, those of the task in `ogrpo.setup.find_task`.
"""

import re

from ogrpo.system.values import Conditions

EFFECTIVE_IF: Conditions = (
    ("resume-anyway", lambda c: c.goes_on, "nothing is resumed; give --resume, or leave it out"),
    (
        "model.random",
        lambda c: c.model.path is None,
        "the weights of model.path are loaded: leave one of the two out (--model.path None)",
    ),
    ("lora.alpha lora.targets", lambda c: c.lora.rank is not None, "give --lora.rank"),
    (
        "rollout.quantize",
        lambda c: not c.rollout.url,
        "servers have weights of their own kind (ogrpo-serve DIR -- --quantization ...)",
    ),
    (
        "rollout.in-flight",
        lambda c: c.rollout.url and c.rollout.workers > 1,
        "give --rollout.url and --rollout.workers 2 or more",
    ),
    (
        "rollout.in-flight",
        lambda c: c.schedule.sync_offset > 0,
        "with schedule.sync-offset 0 nothing is in flight when weights are pushed: give"
        " --schedule.sync-offset 1 or more",
    ),
    (
        "evaluation.batch",
        lambda c: not c.rollout.url or c.evaluation.engine == "embedded",
        "servers draw the answers; give --evaluation.engine embedded",
    ),
    (
        "rollout.keep-sampling-mask",
        lambda c: c.rollout.truncation,
        "all tokens may be drawn: give --rollout.top-k, --rollout.top-p or --rollout.min-p",
    ),
    (
        "schedule.reset-optimizer",
        lambda c: c.schedule.stages > 1,
        "it acts at the start of each stage after the first; give more schedule.stages than 1",
    ),
    ("logs.behavior", lambda c: c.logs.path is not None, "give --logs.path"),
    (
        "logs.mix",
        lambda c: c.logs.path is not None and not c.schedule.offline,
        "give --logs.path, without --schedule.offline",
    ),
    (
        "reward.flip",
        lambda c: not c.from_logs_alone,
        "the rewards of --logs.path are as they were logged",
    ),
    (
        "replay.sampler",
        lambda c: (
            c.replay.groups is not None
            or c.logs.path is not None
            or c.schedule.draw_size < c.schedule.prompts
            or c.schedule.warmup > 1
        ),
        "the buffer holds one batch, and each draw takes all of it: give --replay.groups",
    ),
    ("replay.half-life", lambda c: c.replay.sampler == "fresh", "give --replay.sampler fresh"),
    (
        "reuse.limits.kl reuse.limits.ess reuse.limits.tail reuse.limits.staleness"
        " reuse.limits.clip-step reuse.limits.clip-range",
        lambda c: c.reuse.adaptive,
        "give --reuse.adaptive",
    ),
    (
        "reuse.limits.clip-range",
        lambda c: c.reuse.limits.clip_step > 0,
        "the clip keeps its width; give --reuse.limits.clip-step more than 0",
    ),
    ("certificate.pairs", lambda c: c.certificate.delta is not None, "give --certificate.delta"),
    (
        "certificate.pairs",
        lambda c: c.schedule.sync_offset == 0,
        "with an offset nothing is drawn for a certificate: leave --schedule.sync-offset at 0",
    ),
    (
        "override.count-masked",
        lambda c: c.override.mask_zero_variance,
        "give --override.mask-zero-variance",
    ),
    ("trust-region.delta", lambda c: c.trust_region.kind != "none", "give --trust-region.kind"),
    (
        "trust-region.rate",
        lambda c: c.trust_region.kind in ("penalty", "clip"),
        "give --trust-region.kind penalty or clip",
    ),
    (
        "optimizer.microbatch-tokens",
        lambda c: c.optimizer.batching == "packed",
        "give --optimizer.batching packed",
    ),
    (
        "optimizer.microbatches",
        lambda c: c.optimizer.microbatch_tokens is None,
        "leave it or optimizer.microbatch-tokens out",
    ),
    (
        "kernels.kept-mib",
        lambda c: c.kernels.log_probs in ("auto", "chunked"),
        "give --kernels.log-probs chunked",
    ),
)
"""When options act; otherwise they change nothing."""

NAMED_BY = ("coordinator", "count", "id")
VALID_IF: Conditions = (
    (
        "optimizer.b2",
        lambda c: c.optimizer.b2 <= 0.995 or c.model.dtype == "float32" or c.lora.rank is not None,
        "and second moments in bfloat16 would hardly move: give at most 0.995, or --model.dtype"
        " float32 with --model.compute-dtype bfloat16",
    ),
    (
        "rollout.keep-sampling-mask",
        lambda c: c.rollout.top_k > 0 or not c.rollout.url,
        "and servers say which tokens they could draw where they are few: give --rollout.top-k",
    ),
    (
        "certificate.delta",
        lambda c: not c.rollout.keep_sampling_mask,
        "which is about whole policies, and rollout.keep-sampling-mask cuts them: leave one out",
    ),
    (
        "certificate.delta",
        lambda c: (
            c.certificate.pairs or (not c.rollout.truncation and c.rollout.quantize == "none")
        ),
        "whose ratios are of the trainer's policies, and --rollout.top-k, .top-p, .min-p or"
        " .quantize has the sampler draw from others: leave it out, or give --certificate.pairs,"
        " which needs no ratios, or --certificate.delta None",
    ),
    (
        "certificate.delta",
        lambda c: c.schedule.sync_offset == 0 or c.rollout.in_flight == "wait",
        "whose draws may not be selected by length, as rollout.in-flight {c.rollout.in_flight}"
        " does: give --certificate.delta None, or leave that out",
    ),
    (
        "certificate.pairs",
        lambda c: not c.rollout.url,
        "and servers draw with random numbers of their own: leave it out, or --rollout.url",
    ),
    (
        "schedule.stages",
        lambda c: c.schedule.stages <= c.schedule.steps,
        "more than schedule.steps = {c.schedule.steps}: give fewer",
    ),
    (
        "schedule.warmup",
        lambda c: c.schedule.warmup < c.schedule.steps,
        "which leaves no step of schedule.steps = {c.schedule.steps} to train in: give less",
    ),
    (
        "schedule.offline",
        lambda c: c.schedule.warmup > 0 or c.logs.path is not None,
        "which collects only during the warm-up, but schedule.warmup is 0: give the number of"
        " batches to collect, or --logs.path",
    ),
    (
        "logs.path",
        lambda c: (
            c.schedule.offline
            or c.logs.mix is not None
            or (c.replay.groups is not None and c.replay.sampler != "fifo")
        ),
        "which the buffer begins with: give --schedule.offline to train on it alone, --logs.mix for"
        " a fixed share of each draw, or have fresh groups join and replace it with"
        " --replay.groups, as many as the buffer holds, and --replay.sampler uniform, or another"
        " but fifo",
    ),
    (
        "logs.mix",
        lambda c: (
            c.logs.mix is None
            or 0 < round(c.logs.mix * c.schedule.draw_size) < c.schedule.draw_size
        ),
        "of a draw of {c.schedule.draw_size} groups, which leaves one side none: give another, or a"
        " larger --schedule.draw",
    ),
    (
        "logs.mix",
        lambda c: (
            (c.replay.groups, c.replay.max_staleness, c.replay.max_uses, c.replay.sampler)
            == (None, None, None, "fifo")
        ),
        "which draws from the whole log and all groups of the run, each side uniformly: leave out"
        " --replay.sampler, --replay.groups, --replay.max-staleness and --replay.max-uses",
    ),
    (
        "logs.path",
        lambda c: c.override.centering == 0 and not c.rollout.keep_sampling_mask,
        "whose rows do not say what else could be drawn: leave out --override.centering and"
        " --rollout.keep-sampling-mask",
    ),
    (
        "replay.groups",
        lambda c: c.replay.groups is None or c.replay.groups >= c.schedule.draw_size,
        "but batches of {c.schedule.draw_size} groups are drawn: hold at least as many",
    ),
    (
        "optimizer.microbatches",
        lambda c: c.schedule.draw_size % c.optimizer.microbatches == 0,
        "but a batch of {c.schedule.draw_size} groups cannot be cut into so many equal parts",
    ),
    (
        "evaluation.batch",
        lambda c: (c.evaluation.batch or 0) % (c.mesh.data * c.mesh.fsdp) == 0,
        "which cannot be cut over mesh.data * mesh.fsdp devices: make it a multiple of them",
    ),
    (
        "mesh.data mesh.fsdp",
        lambda c: all(
            groups % (c.optimizer.microbatches * c.mesh.data * c.mesh.fsdp) == 0
            for groups in (c.schedule.prompts, c.schedule.draw_size)
        ),
        "but schedule.prompts = {c.schedule.prompts} and batches of {c.schedule.draw_size} in"
        " optimizer.microbatches = {c.optimizer.microbatches} parts cannot be cut over mesh.data *"
        " mesh.fsdp devices: make them multiples of the three",
    ),
    (
        "processes.auto",
        lambda c: all(getattr(c.processes, name) is None for name in NAMED_BY),
        "which finds the others by itself: leave it out, or give no --processes.coordinator,"
        " --processes.count and --processes.id",
    ),
    *(
        (
            " ".join(f"processes.{name}" for name in NAMED_BY if name != missing),
            lambda c, missing=missing: getattr(c.processes, missing) is not None,
            "but coordinator, count and id name a process together: also give"
            f" --processes.{missing}",
        )
        for missing in NAMED_BY
    ),
    (
        "processes.id",
        lambda c: c.processes.id is None or c.processes.id < c.processes.count,
        "but the {c.processes.count} processes are numbered from 0",
    ),
    (
        "processes.coordinator",
        lambda c: re.fullmatch(r".+:[0-9]+", str(c.processes.coordinator)),
        "which is no host with a port: give HOST:PORT",
    ),
)
"""When options fit the others."""
