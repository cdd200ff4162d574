// Writes a document that only one process at a time may write.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"time"

	pb "example.com/lock/quotav1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The same message again, so the same id.
const retry = `{"methodConfig": [{
	"name": [{"service": "quota.v1.QuotaService"}], "waitForReady": true, "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

var (
	ttl, _  = time.ParseDuration(cmp.Or(os.Getenv("LOCK_TTL_SECONDS"), "30") + "s")
	work, _ = time.ParseDuration(cmp.Or(os.Getenv("WORK_SECONDS"), "1") + "s")
	wait    = 10 * time.Second
)

// locked runs f with the fencing token; its context ends when the lock is lost.
func locked(ctx context.Context, quota pb.QuotaServiceClient, doc string, f func(context.Context, int64) error) error {
	id := rand.Text()
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	defer func() { // after a failed Reserve too: it may have been granted and the answer lost
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		// Where this fails, the ttl ends the lock.
		quota.Release(ctx, &pb.ReleaseRequest{Namespace: "docs", ReservationId: id, AllowMissing: true})
	}()
	reserving, cancel := context.WithTimeout(ctx, wait+5*time.Second)
	defer cancel()
	held, err := quota.Reserve(reserving, &pb.ReserveRequest{
		Namespace: "docs", ReservationId: id, Items: []*pb.Item{{Metric: "edit"}},
		Dimensions: map[string]string{"doc": doc}, Ttl: durationpb.New(ttl), Wait: durationpb.New(wait)})
	if err != nil {
		return err
	}
	go renew(ctx, quota, id, lose)
	return f(ctx, held.Reservation.Charges[0].FencingToken)
}

func renew(ctx context.Context, quota pb.QuotaServiceClient, id string, lose context.CancelCauseFunc) {
	for pause := ttl / 3; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		renewing, cancel := context.WithTimeout(ctx, ttl/3)
		_, err := quota.Extend(renewing, &pb.ExtendRequest{Namespace: "docs", ReservationId: id, Ttl: durationpb.New(ttl)})
		cancel()
		switch status.Code(err) {
		case codes.OK:
			pause = ttl / 3
		case codes.FailedPrecondition, codes.NotFound: // RESERVATION_EXPIRED, ALREADY_RELEASED
			lose(fmt.Errorf("the lock is lost: %w", err))
		default: // UNAVAILABLE and the like: nobody says that it is lost
			pause = ttl / 30
		}
	}
}

var tokens = map[string]int64{} // in what you write to, which refuses a writer who is late

func save(doc, text string, token int64) error {
	if token < tokens[doc] {
		return fmt.Errorf("%s was written with a later token than %d", doc, token)
	}
	tokens[doc] = token
	return nil
}

func main() {
	conn, err := grpc.NewClient(os.Getenv("QUOTAD_SERVER"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(retry))
	if err != nil {
		log.Fatal(err)
	}
	err = locked(context.Background(), pb.NewQuotaServiceClient(conn), "doc-7", func(ctx context.Context, token int64) error {
		select { // the work, as long as the lock is held
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(work):
		}
		if err := save("doc-7", "some text", token); err != nil {
			return err
		}
		fmt.Println("saved doc-7 with token", token)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
