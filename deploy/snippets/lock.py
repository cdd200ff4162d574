"""Writes a document that only one process at a time may write."""
import json, os, threading, uuid
from contextlib import contextmanager, suppress
import grpc
from google.protobuf.duration_pb2 import Duration
from quota.v1 import quota_service_pb2 as pb, quota_service_pb2_grpc as rpc

TTL, WAIT = int(os.getenv("LOCK_TTL_SECONDS", "30")), 10
LOST = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)
RETRY = json.dumps({"methodConfig": [{
    "name": [{"service": "quota.v1.QuotaService"}], "waitForReady": True, "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"]}}]})  # the same message again, so the same id

@contextmanager
def locked(quota, doc):
    """Gives the fencing token, and an event that is set when the lock is lost."""
    this, ttl = {"namespace": "docs", "reservation_id": str(uuid.uuid4())}, Duration(seconds=TTL)
    done, lost = threading.Event(), threading.Event()
    def renew(pause=TTL / 3):
        while not done.wait(pause):
            try:
                quota.Extend(pb.ExtendRequest(**this, ttl=ttl), timeout=TTL / 3)
                pause = TTL / 3
            except grpc.RpcError as error:
                if error.code() in LOST:  # RESERVATION_EXPIRED, ALREADY_RELEASED
                    return lost.set()
                pause = TTL / 30  # UNAVAILABLE and the like: nobody says that it is lost
    try:
        held = quota.Reserve(pb.ReserveRequest(
            **this, items=[pb.Item(metric="edit")], dimensions={"doc": doc},
            ttl=ttl, wait=Duration(seconds=WAIT)), timeout=WAIT + 5)
        threading.Thread(target=renew, daemon=True).start()
        yield held.reservation.charges[0].fencing_token, lost
    finally:  # after a failed Reserve too: it may have been granted and the answer lost
        done.set()
        with suppress(grpc.RpcError):  # where this fails, the ttl ends the lock
            quota.Release(pb.ReleaseRequest(**this, allow_missing=True), timeout=5)

tokens = {}  # in what you write to, which refuses a writer who is late
def save(doc, text, token):
    if token < tokens.get(doc, 0):
        raise PermissionError(f"{doc} was written with a later token than {token}")
    tokens[doc] = token

with grpc.insecure_channel(os.environ["QUOTAD_SERVER"], [("grpc.service_config", RETRY)]) as channel:
    with locked(rpc.QuotaServiceStub(channel), "doc-7") as (token, lost):
        if lost.wait(float(os.getenv("WORK_SECONDS", "1"))):  # the work, as long as the lock is held
            raise SystemExit("the lock is lost")
        save("doc-7", "some text", token)
        print("saved doc-7 with token", token)
