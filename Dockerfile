# One image for every part: the command line says which (see docker-compose.yml).
# `python -m tests.operate.image` runs these steps on a machine without Docker.
FROM python:3.12-slim
WORKDIR /opt/afterturn
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md CHANGELOG.md ./
COPY src ./src
COPY tasks ./tasks
COPY workers ./workers
COPY schema ./schema
RUN pip install --no-cache-dir --no-deps --no-build-isolation .
RUN useradd --system --create-home --uid 10001 afterturn
USER afterturn
WORKDIR /home/afterturn
ENTRYPOINT ["afterturn"]
CMD ["--help"]
