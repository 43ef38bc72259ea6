/* The functions of libnccl and libcuda that a broadcast uses, for machines without a GPU: the
 * transport alone is made up, and carries over sockets what NCCL carries between GPUs.
 *
 * Rank 0 does not block: a join, a sum or a broadcast is under way until its thread is done, as
 * ncclCommGetAsyncError and cuStreamQuery say. The others block, and so does all without a stream.
 * Every operation says what it is (kind, count, dtype); who expects another refuses it. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define VERSION 23203
#define MOST 16
enum { DONE = 0, SYSTEM = 2, ARGUMENT = 4, REMOTE = 6, IN_PROGRESS = 7, NOT_READY = 600 };
typedef struct { char internal[128]; } Id;
typedef struct { size_t size; unsigned magic, version; int blocking; } Config;
typedef struct { int ranks, rank, listener, at[MOST]; volatile int state, aborted; } Comm;
typedef struct { volatile int pending; } Stream;
typedef struct { int kind; int dtype; size_t count; } Head;
typedef struct { Comm *comm; Stream *stream; Head head; const char *from; char *to; int root; } Task;
static int listeners[65536];
static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
static __thread void *context;

static int sized(int dtype) { return dtype == 7 ? 4 : dtype == 1 ? 1 : 0; }

static int give(int fd, const void *from, size_t size) {
  for (size_t n = 0; n < size;) {
    ssize_t part = send(fd, (const char *)from + n, size - n, MSG_NOSIGNAL);
    if (part <= 0) return REMOTE;
    n += part;
  }
  return DONE;
}
static int take(int fd, void *to, size_t size) {
  for (size_t n = 0; n < size;) {
    ssize_t part = recv(fd, (char *)to + n, size - n, 0);
    if (part <= 0) return part && errno == EAGAIN ? SYSTEM : REMOTE;
    n += part;
  }
  return DONE;
}
static int expect(int fd, Head wanted) {
  Head found;
  int result = take(fd, &found, sizeof found);
  if (result) return result;
  return memcmp(&found, &wanted, sizeof found) ? ARGUMENT : DONE;
}

/* A piece of a test does not fit into what nobody has read yet. */
static void hold_little(int fd) {
  int most = 1 << 15;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &most, sizeof most);
}
static int meet(Comm *comm) {
  for (int n = 1; n < comm->ranks; n++) {
    int rank, fd = accept(comm->listener, NULL, NULL);
    hold_little(fd);
    if (fd < 0 || take(fd, &rank, sizeof rank)) return REMOTE;
    if (rank < 1 || rank >= comm->ranks || comm->at[rank]) return ARGUMENT;
    comm->at[rank] = fd;
  }
  for (int n = 1; n < comm->ranks; n++)
    if (give(comm->at[n], "j", 1)) return REMOTE;
  return DONE;
}

static int act(Task *task) {
  Comm *comm = task->comm;
  size_t size = task->head.count * sized(task->head.dtype);
  int result = size && task->root == 0 ? DONE : ARGUMENT;
  if (comm->rank) {
    if (!result && task->head.kind == 1) {
      result = give(comm->at[0], &task->head, sizeof task->head);
      if (!result) result = give(comm->at[0], task->from, size);
    }
    if (!result) result = expect(comm->at[0], task->head);
    return result ? result : take(comm->at[0], task->to, size);
  }
  float sum = task->head.kind == 1 ? *(const float *)task->from : 0, each;
  for (int n = 1; !result && task->head.kind == 1 && n < comm->ranks; n++) {
    result = expect(comm->at[n], task->head);
    if (!result) result = take(comm->at[n], &each, size);
    sum += each;
  }
  for (int n = 1; !result && n < comm->ranks; n++) {
    result = give(comm->at[n], &task->head, sizeof task->head);
    if (!result) result = give(comm->at[n], task->head.kind == 1 ? (char *)&sum : task->from, size);
  }
  return result;
}
static void *acting(void *given) {
  Task *task = given;
  int result = act(task);
  if (result) task->comm->state = result;
  /* What a GPU waits for when its peer is gone never comes: it is not done before it is aborted. */
  while (result == REMOTE && !task->comm->aborted) usleep(1000);
  task->stream->pending = 0;
  free(task);
  return NULL;
}
static int begin(Comm *comm, Stream *stream, Head head, void *from, void *to, int root) {
  Task task = {comm, stream, head, from, to, root}, *kept;
  pthread_t thread;
  if (comm->state) return comm->state;
  if (!stream) return act(&task);
  if (stream->pending) return ARGUMENT; /* its buffer may be gone */
  stream->pending = 1;
  kept = malloc(sizeof task);
  *kept = task;
  pthread_create(&thread, NULL, acting, kept);
  pthread_detach(thread);
  return DONE;
}
static void *meeting(void *given) {
  Comm *comm = given;
  comm->state = meet(comm);
  pthread_mutex_lock(&door);
  close(comm->listener);
  comm->listener = 0;
  pthread_mutex_unlock(&door);
  return NULL;
}

const char *ncclGetErrorString(int result) {
  return result == REMOTE ? "remote process exited or there was a network error" : "invalid argument";
}
int ncclGetVersion(int *version) { *version = VERSION; return DONE; }
int ncclGetUniqueId(Id *id) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(fd, (void *)&at, size) || listen(fd, MOST) || getsockname(fd, (void *)&at, &size)) return SYSTEM;
  listeners[ntohs(at.sin_port)] = fd;
  memset(id, 7, sizeof *id);
  memcpy(id, &at.sin_port, sizeof at.sin_port);
  return DONE;
}
static Comm *joined(int ranks, int rank) {
  Comm *comm = calloc(1, sizeof *comm);
  comm->ranks = ranks, comm->rank = rank;
  return comm;
}
int ncclCommInitRankConfig(Comm **out, int ranks, Id id, int rank, Config *config) {
  pthread_t thread;
  in_port_t port;
  if (config->magic != 0xcafebeef || config->size < sizeof *config || config->blocking || rank) return ARGUMENT;
  if (!context || ranks < 2 || ranks > MOST) return ARGUMENT;
  memcpy(&port, &id, sizeof port);
  *out = joined(ranks, rank);
  (*out)->listener = listeners[ntohs(port)], (*out)->state = IN_PROGRESS;
  pthread_create(&thread, NULL, meeting, *out);
  pthread_detach(thread);
  return IN_PROGRESS;
}
int ncclCommInitRank(Comm **out, int ranks, Id id, int rank) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  char there;
  memcpy(&at.sin_port, &id, sizeof at.sin_port);
  *out = joined(ranks, rank);
  (*out)->at[0] = socket(AF_INET, SOCK_STREAM, 0);
  struct timeval most = {30, 0}; /* a test that hangs says less than one that fails */
  setsockopt((*out)->at[0], SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  hold_little((*out)->at[0]);
  if (connect((*out)->at[0], (void *)&at, sizeof at)) return SYSTEM;
  return give((*out)->at[0], &rank, sizeof rank) ? REMOTE : take((*out)->at[0], &there, 1);
}
int ncclCommGetAsyncError(Comm *comm, int *state) { *state = comm->state; return DONE; }
/* Rank 0's is neither freed nor closed: a thread of an earlier test may still hold it, and would accept
 * or read what comes for a later one under the same descriptor. Who meets closes what it listened on. */
int ncclCommAbort(Comm *comm) {
  comm->aborted = 1;
  pthread_mutex_lock(&door);
  if (comm->listener) shutdown(comm->listener, SHUT_RDWR);
  pthread_mutex_unlock(&door);
  for (int n = 0; n < comm->ranks; n++) {
    if (!comm->at[n]) continue;
    shutdown(comm->at[n], SHUT_RDWR);
    if (comm->rank) close(comm->at[n]), comm->at[n] = 0;
  }
  return DONE;
}
int ncclAllReduce(void *from, void *to, size_t count, int dtype, int op, Comm *comm, Stream *stream) {
  if (op || (comm->rank == 0 && from != to)) return ARGUMENT;
  return begin(comm, stream, (Head){1, dtype, count}, from, to, 0);
}
int ncclBroadcast(void *from, void *to, size_t count, int dtype, int root, Comm *comm, Stream *stream) {
  if (comm->rank == root && from != to) return ARGUMENT;
  return begin(comm, stream, (Head){2, dtype, count}, from, to, root);
}

#define ABSENT(name) int name(void) { return ARGUMENT; } /* what vLLM looks for and no one calls */
ABSENT(ncclReduce) ABSENT(ncclAllGather) ABSENT(ncclReduceScatter) ABSENT(ncclSend) ABSENT(ncclRecv)
ABSENT(ncclCommDestroy) ABSENT(ncclGroupStart) ABSENT(ncclGroupEnd) ABSENT(ncclCommSuspend)
ABSENT(ncclCommResume) ABSENT(ncclCommWindowRegister) ABSENT(ncclCommWindowDeregister)

int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : DONE; }
int cuDevicePrimaryCtxRetain(void **out, int device) { (void)device; *out = &listeners; return DONE; }
int cuCtxSetCurrent(void *given) { context = given; return DONE; }
int cuStreamCreate(Stream **out, unsigned flags) {
  if (!context) return 201;
  *out = calloc(1, sizeof **out);
  return flags == 1 ? DONE : 1;
}
int cuStreamQuery(Stream *stream) { return !context ? 201 : stream->pending ? NOT_READY : DONE; }
int cuStreamDestroy_v2(Stream *stream) { (void)stream; return DONE; }
