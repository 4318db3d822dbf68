/* crowd: many clients of a broker in one thread, each with a connection, over the RocketMQ remoting protocol.
 *
 *   cc -O2 -o crowd crowd.c
 *   crowd send|pull|join [options]
 *     send   each client is a producer and sends `rate` messages a second at moments of its own (open loop)
 *     pull   each client is a consumer and holds a pull on a queue of its own; `rate` messages a second go to all queues
 *     join   all clients are consumers of one group and join at once; each asks for the group's members when it is told
 *            of a change, one question at a time, until it has seen all of them
 *
 * options (default): -p port (10911) -c clients (1000) -r messages a second (1) -s seconds (10) -b body bytes (128)
 *   -t topic (Crowd) -q queues of a topic (1000) -g consumers of a group when they pull (50)
 * Clients connect at once and begin with a heartbeat. A client whose connection ends connects again every 100 ms, and
 * begins again with a heartbeat; the load goes on for `seconds` after the last one is there again. A message that is due while a client has no connection is not sent.
 *
 * Each client has an address of its own, 127.1.0.1 and so on, as on a host of its own: with one address for all, a new
 * connection often has the port of one that the killed broker has closed, and the system sends its SYN again after 1 s.
 *
 * One line is printed when all clients are there, and one at the end: JSON, times in milliseconds. Latency is from the
 * moment at which a message is due to its answer (send), or to the answer of the pull that has it (pull). After a loss
 * of all connections, the broker is ready with its first answer, and "behind" is the time from it to the last client's
 * first answer; latencies before it do not count.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { IN_FLIGHT = 64, SENDERS = 16, SEND = 310, PULL = 11, BEAT = 34, MEMBERS = 38, NOTICE = 40, RETRY_MS = 100, PATIENCE_S = 120 };
/* The kind of a request is in the upper bits of its opaque. */
enum { OF_BEAT = 1 << 28, OF_PULL = 2 << 28, OF_MEMBERS = 3 << 28, OF_SEND = 4 << 28, KIND = 7 << 28 };

struct client {
  int fd, open, greeted, in_flight, asks, dirty, complete;
  char *in; size_t in_len, in_cap; char *out; size_t out_len, out_cap;
  uint64_t due[IN_FLIGHT], retry_at; uint32_t sends; long offset;
};
static struct client *C;
static const char *topic = "Crowd", *mode;
static int port = 10911, clients = 1000, body = 128, queues = 1000, of_group = 50, ep;
static double rate = 1, seconds = 10;
static uint64_t sent, done, unsent, failures, notices, lost, greeted, complete, began, ready_at, last_at, max_ns, hist[64 * 64], recorded, *sent_to;

static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void die(const char *what) { fprintf(stderr, "crowd: %s: %s\n", what, strerror(errno)); exit(1); }
static void record(uint64_t ns) { int e = 63 - __builtin_clzll(ns | 1), s = e < 6 ? 0 : (ns >> (e - 6)) & 63; hist[e * 64 + s]++; recorded++; if (ns > max_ns) max_ns = ns; }
static double quantile(double q) { uint64_t want = q * recorded, seen = 0; for (int i = 0; i < 64 * 64; i++) if ((seen += hist[i]) > want) { int e = i / 64, s = i % 64; return (e < 6 ? (double)(1ull << e) : (double)((64ull + s) << (e - 6))) / 1e6; } return max_ns / 1e6; }
static int is(const char *name) { return !strcmp(mode, name); }

static void drop(int i) {
  struct client *c = &C[i];
  if (c->fd >= 0) close(c->fd);
  if (c->greeted) { greeted--; lost++; }
  c->fd = -1; c->open = c->greeted = c->in_flight = c->asks = c->dirty = 0; c->in_len = c->out_len = 0; c->retry_at = now() + RETRY_MS * 1000000ull;
}
static void want(int i) { struct epoll_event e = {.events = EPOLLIN | (C[i].out_len || !C[i].open ? EPOLLOUT : 0), .data.u32 = i}; epoll_ctl(ep, EPOLL_CTL_MOD, C[i].fd, &e); }
static void flush_out(int i) {
  struct client *c = &C[i]; if (!c->open || !c->out_len) return;
  ssize_t w = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
  if (w < 0) { if (errno != EAGAIN) drop(i); else want(i); return; }
  memmove(c->out, c->out + w, c->out_len -= w); if (c->out_len) want(i);
}
static void put(int i, int code, uint32_t opaque, const char *fields, const char *text, size_t n) {
  struct client *c = &C[i]; size_t need = c->out_len + n + 2048; if (need > c->out_cap) c->out = realloc(c->out, c->out_cap = need);
  char *frame = c->out + c->out_len; int h = sprintf(frame + 8, "{\"code\":%d%s%s%s,\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}", code, *fields ? ",\"extFields\":{" : "", fields, *fields ? "}" : "", opaque);
  memcpy(frame + 8 + h, text, n); uint32_t a = htonl(4 + h + n), b = htonl(h); memcpy(frame, &a, 4); memcpy(frame + 4, &b, 4); c->out_len += 8 + h + n;
}
static int group_of(int i) { return is("join") ? 0 : i / of_group; }
static void greet(int i) {
  char text[1024]; int n;
  if (is("send") || i >= clients) n = sprintf(text, "{\"clientID\":\"10.0.%d.%d@%d\",\"producerDataSet\":[{\"groupName\":\"crowd-producers\"}],\"consumerDataSet\":[]}", i >> 8, i & 255, i);
  else n = sprintf(text, "{\"clientID\":\"10.0.%d.%d@%d\",\"producerDataSet\":[],\"consumerDataSet\":[{\"groupName\":\"crowd-%d\",\"consumeType\":\"CONSUME_PASSIVELY\",\"messageModel\":\"CLUSTERING\",\"consumeFromWhere\":\"CONSUME_FROM_LAST_OFFSET\",\"subscriptionDataSet\":[{\"topic\":\"%s%d\",\"subString\":\"*\",\"tagsSet\":[],\"codeSet\":[],\"subVersion\":1,\"classFilterMode\":false,\"expressionType\":\"TAG\"}],\"unitMode\":false}]}", i >> 8, i & 255, i, group_of(i), topic, i / queues);
  put(i, BEAT, OF_BEAT, "", text, n);
}
static void connect_one(int i) {
  struct client *c = &C[i]; struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}; int one = 1;
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f010001 + i)};
  c->retry_at = 0; if ((c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) < 0) die("socket");
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
  if (bind(c->fd, (void *)&own, sizeof own)) die("bind");
  if (connect(c->fd, (void *)&a, sizeof a) && errno != EINPROGRESS) { drop(i); return; }
  struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.u32 = i}; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
  greet(i);
}
static void pull(int i) {
  char fields[1024]; sprintf(fields, "\"consumerGroup\":\"crowd-%d\",\"topic\":\"%s%d\",\"queueId\":\"%d\",\"queueOffset\":\"%ld\",\"maxMsgNums\":\"32\",\"sysFlag\":\"2\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"20000\",\"subscription\":\"*\",\"subVersion\":\"1\",\"expressionType\":\"TAG\"", group_of(i), topic, i / queues, i % queues, C[i].offset);
  put(i, PULL, OF_PULL, fields, "", 0);
}
static void ask_members(int i) {
  struct client *c = &C[i]; if (c->asks) { c->dirty = 1; return; }
  char fields[128]; sprintf(fields, "\"consumerGroup\":\"crowd-%d\"", group_of(i)); c->asks = 1; c->dirty = 0; put(i, MEMBERS, OF_MEMBERS, fields, "", 0);
}
static void send_one(int i, int t, int queue, uint64_t due) {
  struct client *c = &C[i]; char fields[1024]; static char text[65536]; static uint64_t n;
  if (!c->greeted || c->in_flight == IN_FLIGHT) { unsent++; return; }
  uint32_t at = c->sends++; c->in_flight++; c->due[at % IN_FLIGHT] = due; sent++;
  sprintf(fields, "\"a\":\"crowd-producers\",\"b\":\"%s%d\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%d\",\"f\":\"0\",\"g\":\"1700000000000\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001%024llX\\u0002WAIT\\u0001true\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"", topic, t, queues, queue, (unsigned long long)++n);
  put(i, SEND, OF_SEND | (at & 0xffffff), fields, text, body); flush_out(i);
}
/* A number behind "name" in a JSON header. */
static long number(const char *h, const char *name, long otherwise) { const char *p = strstr(h, name); if (!p) return otherwise; p += strlen(name); while (*p && (*p < '0' || *p > '9') && *p != '-') p++; return *p ? atol(p) : otherwise; }

static void answered(int i, char *header, const char *text, size_t n, uint64_t t) {
  struct client *c = &C[i]; long code = number(header, "\"code\":", -1), flag = number(header, "\"flag\":", 0); uint32_t opaque = number(header, "\"opaque\":", 0);
  if (!(flag & 1)) { if (code == NOTICE) { notices++; if (is("join")) ask_members(i); } return; }
  if (!ready_at) { ready_at = t; recorded = max_ns = 0; memset(hist, 0, sizeof hist); }
  switch (opaque & KIND) {
  case OF_BEAT:
    if (code) failures++;
    c->greeted = 1; greeted++; last_at = t; if (is("pull") && i < clients) pull(i); if (is("join")) ask_members(i); break;
  case OF_SEND: c->in_flight--; if (code) failures++; else { done++; if (!is("pull")) record(t - c->due[(opaque & 0xffffff) % IN_FLIGHT]); } break;
  case OF_PULL:
    if (code == 0) { long next = number(header, "\"nextBeginOffset\"", c->offset); if (sent_to[i]) { record(t - sent_to[i]); sent_to[i] = 0; } done += next - c->offset; c->offset = next; }
    else if (code == 20 || code == 21) c->offset = number(header, "\"nextBeginOffset\"", c->offset);
    else if (code != 19) failures++;
    pull(i); break;
  case OF_MEMBERS: {
    int members = 0; for (size_t k = 0; k < n; k++) members += text[k] == '@'; c->asks = 0;
    if (code) failures++; else if (members >= clients && !c->complete) { c->complete = 1; complete++; record(t - began); }
    if (c->dirty) ask_members(i);
    break; }
  }
}
static void take(int i) {
  struct client *c = &C[i];
  for (;;) {
    if (c->in_cap - c->in_len < 2048) c->in = realloc(c->in, c->in_cap = c->in_cap ? c->in_cap * 2 : 4096);
    ssize_t r = read(c->fd, c->in + c->in_len, c->in_cap - c->in_len - 1);
    if (r < 0 && errno == EAGAIN) break;
    if (r <= 0) { drop(i); return; }
    c->in_len += r; size_t p = 0; uint64_t t = now();
    while (c->in_len - p >= 8) {
      uint32_t l, hl; memcpy(&l, c->in + p, 4); l = ntohl(l); if (c->in_len - p - 4 < l) break;
      memcpy(&hl, c->in + p + 4, 4); hl = ntohl(hl) & 0xffffff; char *h = c->in + p + 8, save = h[hl]; h[hl] = 0; char *header = strdup(h); h[hl] = save;
      answered(i, header, h + hl, l - 4 - hl, t); free(header); p += 4 + l;
    }
    memmove(c->in, c->in + p, c->in_len -= p);
    if ((size_t)r < 1024) break;
  }
  flush_out(i);
}
static void poll_all(int ms) {
  struct epoll_event ev[1024]; int n = epoll_wait(ep, ev, 1024, ms);
  for (int k = 0; k < n; k++) {
    int i = ev[k].data.u32; struct client *c = &C[i]; if (c->fd < 0) continue;
    if (ev[k].events & (EPOLLERR | EPOLLHUP)) { drop(i); continue; }
    if (ev[k].events & EPOLLOUT) { int first = !c->open; c->open = 1; flush_out(i); if (c->fd >= 0 && (first || !c->out_len)) want(i); }
    if (c->fd >= 0 && ev[k].events & EPOLLIN) take(i);
  }
}
static void say(double took_ms, const char *what) {
  double behind = ready_at && last_at > ready_at ? (last_at - ready_at) / 1e6 : 0;
  printf("{\"what\":\"%s\",\"took_ms\":%.1f,\"clients\":%llu,\"sent\":%llu,\"done\":%llu,\"unsent\":%llu,\"failures\":%llu,\"lost\":%llu,\"notices\":%llu,\"complete\":%llu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f,\"behind_ms\":%.1f}\n", what, took_ms, (unsigned long long)greeted, (unsigned long long)sent, (unsigned long long)done, (unsigned long long)unsent, (unsigned long long)failures, (unsigned long long)lost, (unsigned long long)notices, (unsigned long long)complete, quantile(.5), quantile(.99), max_ns / 1e6, behind);
  fflush(stdout);
}

int main(int argc, char **argv) {
  int o, all; if (argc < 2) return 2;
  mode = argv[1]; optind = 2;
  while ((o = getopt(argc, argv, "p:c:r:s:b:t:q:g:")) != -1) switch (o) {
    case 'p': port = atoi(optarg); break; case 'c': clients = atoi(optarg); break; case 'r': rate = atof(optarg); break; case 's': seconds = atof(optarg); break;
    case 'b': body = atoi(optarg); break; case 't': topic = optarg; break; case 'q': queues = atoi(optarg); break; case 'g': of_group = atoi(optarg); break; default: return 2; }
  all = clients + (is("pull") ? SENDERS : 0); C = calloc(all, sizeof *C); sent_to = calloc(all, 8); ep = epoll_create1(0); began = now();
  for (int i = 0; i < all; i++) { C[i].fd = -1; connect_one(i); if (i % 64 == 63) poll_all(0); }
  int told = 0; uint64_t n = 0, start = 0, end = 0, sweep = 0, per_s = is("send") ? (uint64_t)(rate * clients) : (uint64_t)rate, waits = now() + PATIENCE_S * 1000000000ull;
  while (!told || now() < end) {
    uint64_t t = now();
    if (!told && (greeted == (uint64_t)all && (!is("join") || complete == (uint64_t)clients))) {
      say((t - began) / 1e6, "there"); told = 1; start = t; waits = t + PATIENCE_S * 1000000000ull; end = t + (uint64_t)(seconds * 1e9); if (!is("join")) { memset(hist, 0, sizeof hist); recorded = max_ns = 0; } lost = 0;
    }
    if (!told && t > waits) { fprintf(stderr, "crowd: only %llu of %d clients are there, %llu complete\n", (unsigned long long)greeted, all, (unsigned long long)complete); return 1; }
    if (t - sweep > 5000000) { sweep = t; if (lost && !greeted) { ready_at = last_at = 0; memset(sent_to, 0, clients * 8); }
      for (int i = 0; i < all; i++) if (C[i].fd < 0 && C[i].retry_at <= t) { connect_one(i); if (i % 64 == 63) poll_all(0); } }
    if (told && lost && greeted < (uint64_t)all) { end = t + (uint64_t)(seconds * 1e9); if (t > waits) { fprintf(stderr, "crowd: only %llu of %d clients are there again\n", (unsigned long long)greeted, all); return 1; } }
    int ms = 5;
    if (told && !is("join") && per_s) {
      uint64_t due;
      while ((due = start + (uint64_t)((double)n * 1e9 / per_s)) <= t) {
        if (is("send")) send_one(n % clients, 0, n % clients % queues, due);
        else { int to = n * 7919 % clients; if (C[to].greeted && !sent_to[to]) sent_to[to] = due; send_one(clients + n % SENDERS, to / queues, to % queues, due); }
        if (++n % 256 == 0) break;
      }
      ms = due > t ? (due - t) / 1000000 : 0; if (ms > 5) ms = 5;
    }
    poll_all(ms);
  }
  say((now() - start) / 1e6, "end"); return failures != 0;
}
