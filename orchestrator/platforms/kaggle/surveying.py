"""What one Kaggle account offers now, computed from what was read before. Reads nothing itself."""

from __future__ import annotations

from orchestrator.core.accelerators import catalogue
from orchestrator.core.offer import NEVER, Offer, Quota, Traits, Unavailable, Uplink, until_time
from orchestrator.platforms.kaggle.kernel import MACHINES, RETIRED, wall_seconds
from orchestrator.platforms.kaggle.options import HOUR, KaggleOptions
from orchestrator.platforms.kaggle.values import Pool, Quotas

WEEK_SECONDS = 7 * 24 * HOUR
AGAIN_SECONDS = 6 * HOUR  # if a quota is used up and Kaggle does not say when it is renewed
SURPRISING_SECONDS = 1800.0
DISK_GB = 20.0  # of /kaggle/working, the only folder that is kept: docs/references/kaggle.md#limits
CPU_MEMORY_GB = 30.0
PENDING_SECONDS_MAX = 12 * HOUR  # no documented limit for queued kernels; a queued one costs nothing


def offers(name: str, options: KaggleOptions, quotas: Quotas, now: float) -> tuple[Offer, ...]:
    """One offer per accelerator. Those that Kaggle has retired are unavailable, with the reason."""
    retired = tuple(each for each in RETIRED if each not in options.accelerators)
    return tuple(_offer(name, options, quotas, each, now) for each in (*options.accelerators, *retired))


def _offer(name: str, options: KaggleOptions, quotas: Quotas, accelerator: str, now: float) -> Offer:
    machine = MACHINES.get(accelerator)
    if machine is None:
        return Offer(name, accelerator, Traits(owned=False), unavailable=_not_there(accelerator))
    pool = {"gpu": quotas.gpu, "tpu": quotas.tpu}.get(machine.pool)
    slots = {"gpu": options.gpu_slots, "tpu": options.tpu_slots}.get(machine.pool, options.cpu_slots)
    quota, unavailable = None, None
    if machine.pool:
        quota = _quota(pool or Pool(0.0, 0.0, 0.0), quotas.refresh_at, machine.pool)
        unavailable = _exhausted(quota, pool, now)
    return Offer(
        platform=name,
        accelerator=accelerator,
        traits=_traits(options, accelerator),
        slots=slots,
        slot_pool=machine.pool,
        quota=quota,
        memory_gb=None if machine.pool else CPU_MEMORY_GB,
        threads=options.threads,
        disk_gb=DISK_GB,
        unavailable=unavailable,
    )


def is_surprising(before: Quotas | None, now: Quotas) -> bool:
    """Whether a pool that had much left is suddenly used up or gone: one wrong answer must not send runs
    away for a week."""
    if before is None:
        return False
    pools = ((before.gpu, now.gpu), (before.tpu, now.tpu))
    return any(was is not None and was.allowed - was.used > SURPRISING_SECONDS
               and (found is None or found.allowed <= found.used) for was, found in pools)  # fmt: skip


def _not_there(accelerator: str) -> Unavailable:
    known = accelerator in catalogue
    reason = (
        RETIRED.get(accelerator) or f"Kaggle has no {'such machine' if known else 'accelerator of this name'}"
    )
    return Unavailable(reason, NEVER)


def _quota(pool: Pool, refresh_at: float | None, name: str) -> Quota:
    return Quota(
        left_seconds=max(0.0, pool.allowed - pool.used),
        refresh_at=refresh_at,
        window_seconds=WEEK_SECONDS,
        allowed_seconds=pool.allowed,
        reserved_seconds=pool.reserved,
        pool=name,
    )


def _exhausted(quota: Quota, pool: Pool | None, now: float) -> Unavailable | None:
    """Why the quota allows no session, if so. The router decides whether what is left is worth a session.

    Reservations of running sessions are not subtracted: the engine subtracts ours, and if Kaggle finds the
    total too high it refuses the session for now.
    """
    kind = quota.pool.upper()
    refresh = quota.refresh_at
    again = refresh if refresh is not None and refresh > now else now + AGAIN_SECONDS
    if pool is None or quota.allowed_seconds == 0.0:
        return Unavailable(f"this account has no {kind} quota", until_time(again))
    if quota.left_seconds > 0.0:
        return None
    used = f"{pool.used / HOUR:.1f} of {pool.allowed / HOUR:.1f} hours"
    return Unavailable(f"the week's {kind} quota is used up ({used})", until_time(again))


def _traits(options: KaggleOptions, accelerator: str) -> Traits:
    ships = options.uplink
    return Traits(
        session_seconds=wall_seconds(options, accelerator),
        wall_margin_seconds=options.wall_margin_seconds,
        slack_seconds=options.slack_seconds,
        uplink=Uplink.STORE if ships else Uplink.NONE,
        silence_seconds=options.uplink_silence_seconds if ships else Traits.silence_seconds,
        durable_mid_run=ships,
        readable_mid_run=False,
        hands_over=True,
        visibility_seconds=options.visibility_seconds,
        absence_seconds=options.absence_seconds,
        saving_seconds_max=options.publish_seconds + options.saving_seconds,
        pending_seconds_max=PENDING_SECONDS_MAX,
        poll_seconds=options.poll_seconds,
        setup_seconds=options.setup_seconds,
        owned=False,
        metered=bool(MACHINES[accelerator].pool),
        internet=options.internet,
        secrets=options.send_secrets,
    )
