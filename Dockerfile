# Whatever `make demo` and `make test` need, installed:
#   docker build -t distrlcc .
#   docker run --rm distrlcc                           (make demo)
#   docker run --rm --privileged distrlcc make test    (emulated links and BPF need privileges)
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iproute2 libbpf1 make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /distrlcc
COPY . .
RUN make venv
CMD ["make", "demo"]
